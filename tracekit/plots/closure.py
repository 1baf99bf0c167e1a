"""The ranking of policies: how much of the way from LRU to Belady each closes, by cache budget."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.closure import closures, demand_policies
from tracekit.figures import known, settings
from tracekit.plots.kinds import Choices, register
from tracekit.plots.style import as_plain_text, axes_or_new, shortened
from tracekit.trace import Trace, UsageError

_COLOURS = "BrBG"  # brown under LRU, green over it
_MOST = 0.5  # closure at the full colour; hardly a policy reaches it
_CELL_INCHES = 0.62


def _closures(trace: Trace, choices: Choices) -> pd.DataFrame:
    return closures(
        trace,
        choices.policies_or(demand_policies()),
        cache_bytes=None if choices.cache_bytes is None else list(choices.cache_bytes),
        bypass=choices.bypass,
        seed=choices.seed,
    )


@register(
    "closure",
    "which share of the way from LRU to Belady each policy closes, by cache budget",
    _closures,
    reads=("policies", "params", "cache_bytes", "bypass"),
)
def plot_closure(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw a table of closures, coloured: policies by budgets, and the mean over the budgets.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.closures`. A column ``trace`` makes a block of columns for each trace.
    ax : Axes, optional
        Where to draw; a new figure by default, as large as the table needs.
    **style
        Passed to ``Axes.imshow``.

    Returns
    -------
    Axes
        Brown cells are worse than LRU, green ones better; the numbers are percent. LRU, which is 0
        by definition, and Belady, which is 100, are left out.

    Raises
    ------
    UsageError
        There is no other policy.
    """
    data = data.assign(
        trace=data.get("trace", ""),
        label=_labels(data),
    )
    data = data[~data["policy"].isin(["lru", "belady"])]
    if data.empty:
        raise UsageError("LRU and Belady are the ends of the way; name a policy between them.")
    blocks = [(name, rows) for name, rows in data.groupby("trace", sort=False)]
    order = data.groupby("label", sort=False)["mean_closure"].mean().sort_values(ascending=False)
    columns: list[np.ndarray] = []
    texts: list[list[str]] = []
    ticks: list[str] = []
    edges: list[tuple[str, int, int]] = []
    for name, rows in blocks:
        first = len(columns)
        for fraction, of_budget in rows.groupby("cache_fraction"):
            cells = of_budget.set_index("label")["closure"].reindex(order.index)
            columns.append(cells.to_numpy(float))
            texts.append([_percent(value) for value in cells])
            budget = of_budget["cache_mib"].iloc[0]
            ticks.append(f"{budget:,.4g}" if known(budget) else f"{100 * fraction:.3g} %")
        means = rows.drop_duplicates("label").set_index("label").reindex(order.index)
        columns.append(means["mean_closure"].to_numpy(float))
        texts.append(
            [
                _with_interval(mean, low, high)
                for mean, low, high in zip(
                    means["mean_closure"],
                    means["mean_closure_low"],
                    means["mean_closure_high"],
                    strict=True,
                )
            ]
        )
        ticks.append("mean")
        edges.append((str(name), first, len(columns)))
    size = max(7.2, 1.6 + _CELL_INCHES * len(columns)), 1.1 + 0.36 * max(len(order), 3)
    ax = axes_or_new(ax, size)
    values = np.column_stack(columns)
    ax.imshow(
        values, **{"cmap": _COLOURS, "vmin": -_MOST, "vmax": _MOST, "aspect": "auto", **style}
    )
    for (row, column), value in np.ndenumerate(values):
        dark = abs(value) > 0.75 * _MOST
        small = ticks[column] == "mean"
        ax.text(
            column,
            row,
            texts[column][row],
            ha="center",
            va="center",
            fontsize=6 if small else 8,
            color="white" if dark else "black",
        )
    for name, first, stop in edges:
        ax.axvline(stop - 1.5, color="white", linewidth=2)
        ax.axvline(stop - 0.5, color="white", linewidth=5)
        if name:
            ax.text((first + stop - 1) / 2, -0.62, shortened(name, 30), ha="center", va="bottom")
    ax.set_xticks(range(len(ticks)), ticks, fontsize="small")
    ax.set_yticks(range(len(order)), [shortened(label, 40) for label in order.index])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_ylabel("policy")
    unit = "MiB" if data["cache_mib"].notna().any() else "of all experts"
    ax.set_xlabel(f"cache budget ({unit}); below the mean its 95 % interval")
    title = "Share of the way from LRU (0 %) to Belady (100 %) in decode hits"
    ax.set_title(title, loc="left", fontsize="medium", pad=22 if edges[0][0] else 6)
    as_plain_text(ax)
    return ax


def _labels(data: pd.DataFrame) -> pd.Series:
    """Return what each row is called: the policy, with its parameters where they tell two apart."""
    params = data["params"].map(lambda given: given if isinstance(given, str) else settings(given))
    variants = params.groupby(data["policy"]).transform("nunique")
    return data["policy"].where(variants == 1, data["policy"] + " " + params)


def _with_interval(mean: float, low: float, high: float) -> str:
    if np.isnan(low):
        return _percent(mean)
    return f"{_percent(mean)}\n{_percent(low)} to {_percent(high)}"


def _percent(value: float) -> str:
    return "-" if np.isnan(value) else str(round(100 * value))
