"""Two configurations recorded in turns: how each run compares with all, in the order they ran."""

from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes

from tracekit.plots.style import BLACK, BLUE, VERMILION, axes_or_new, finish, whole_numbers

if TYPE_CHECKING:
    from tracekit.timing.comparison import Comparison

_LOOKS = {"A": {"color": BLUE, "marker": "o"}, "B": {"color": VERMILION, "marker": "s"}}


def plot_comparison(comparison: "Comparison", *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw each run's typical token against the mean of all runs, in the order they ran.

    Parameters
    ----------
    comparison : Comparison
        From `tracekit.compare`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for the points.

    Returns
    -------
    Axes
        A point for each run, a line for the mean of each configuration; a slope over the runs of both is
        drift.
    """
    ax = axes_or_new(ax)
    ax.axhline(0, color=BLACK, linewidth=1)
    n = len(comparison.runs)
    for name, look in _LOOKS.items():
        places = [r for r, run in enumerate(comparison.runs) if run.configuration == name]
        values = [100 * comparison.runs[r].against_all for r in places]
        caches = {comparison.runs[r].cache_mib for r in places} - {None}
        cache = f", {caches.pop():,.4g} MiB of cache" if len(caches) == 1 else ""
        ax.plot(
            [r + 1 for r in places],
            values,
            **{**look, "linestyle": "", "label": name + cache, **style},
        )
        mean = sum(values) / len(values)
        ax.hlines(mean, 0.6, n + 0.4, color=look["color"], linestyle="--", linewidth=1)
    ax.set_xlim(0.6, n + 0.4)
    whole_numbers(ax)
    return finish(
        ax,
        title="Typical token of each run (dashed: mean of a configuration)",
        xlabel="run, in the order they were recorded",
        ylabel="longer than all runs on average (%)",
    )
