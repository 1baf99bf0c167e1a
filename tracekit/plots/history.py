"""How much recall knows by how many past tokens it remembers."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.accuracy import accuracy_by_history
from tracekit.plots.kinds import register
from tracekit.plots.series import series_styles
from tracekit.plots.style import axes_or_new, error_bars, finish, percent_axis


@register(
    "history",
    "slot accuracy of recall, by how many past tokens it remembers",
    lambda trace, choices: accuracy_by_history(
        trace, horizon=choices.horizon, seed=choices.seed, jobs=choices.jobs
    ),
    reads=("horizon",),
)
def plot_history(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw recall's slot accuracy against the length of its history.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.accuracy_by_history`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.errorbar`` for every horizon.

    Returns
    -------
    Axes
        A line for each horizon, with bars of the 95 % confidence interval, over a logarithmic axis.
    """
    ax = axes_or_new(ax)
    horizons = data["horizon"].unique().tolist()
    names = {h: "1 layer ahead" if h == 1 else f"{h} layers ahead" for h in horizons}
    looks = series_styles(list(names.values()))
    for horizon, name in names.items():
        rows = data[data["horizon"] == horizon]
        bars = error_bars(rows["slot_accuracy"], rows["ci95_low"], rows["ci95_high"])
        look = {**bars, **looks[name], "label": name, **style}
        ax.errorbar(rows["history"], rows["slot_accuracy"], **look)
    ax.set_xscale("log")
    lengths = sorted(data["history"].unique().tolist())
    ax.set_xticks(lengths, [f"{n:,}" for n in lengths])
    ax.minorticks_off()
    percent_axis(ax, top=None)
    ax.legend()
    return finish(
        ax,
        title="Accuracy of recall by history (bars: 95 % intervals)",
        xlabel="past tokens that vote",
        ylabel="slots named, of k",
    )
