"""Hit-rate curves: policies over cache budgets, under the bound."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.plots.style import (
    BLACK,
    MIB,
    axes_or_new,
    finish,
    legend_below,
    mark_token_cycle,
    percent_axis,
    series_styles,
    thin_markers,
)

_HOLLOW = {"linestyle": "none", "marker": "o", "markersize": 6, "markerfacecolor": "white"}


def plot_curves(
    data: pd.DataFrame, *, ax: Axes | None = None, phase: str = "decode", **style: Any
) -> Axes:
    """Draw each policy's hit rate against the cache budget.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.hit_rate_curves`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    phase : {"decode", "cumulative"}
        Which hit rate: of decode lookups only, or of all.
    **style
        Passed to ``Axes.plot`` for every policy.

    Returns
    -------
    Axes
        One line a policy, hollow where it ran over its budget; the region under one token cycle,
        where LRU falls off its cliff, is grey; the compulsory-miss ceiling is dotted.
    """
    ax = axes_or_new(ax, (7.6, 4.8))
    rate = f"hit_rate_{phase}"
    names = _names(data)
    for name, look in series_styles(list(names.unique())).items():
        rows = data[names == name].sort_values("cache_bytes")
        drawn = {**thin_markers(look, len(rows)), **style}
        x, y = rows["cache_bytes"] / MIB, rows[rate]
        ax.plot(x, y, label=name, **drawn)
        over = _over_budget(rows)
        ax.plot(x[over], y[over], color=drawn["color"], **_HOLLOW)
    if _over_budget(data).any():
        ax.plot([], [], color=BLACK, label="over its budget", **_HOLLOW)
    ceiling = data[f"ceiling_{phase}"].iloc[0]
    ax.axhline(
        ceiling,
        color=BLACK,
        linestyle=":",
        linewidth=1,
        label=f"all but first uses ({100 * ceiling:.1f} %)",
    )
    mark_token_cycle(ax, data["token_cycle_bytes"].iloc[0])
    ax.set_ylim(-0.01, 1.02)
    ax.set_xlim(0, data["cache_bytes"].max() / MIB)
    percent_axis(ax)
    finish(
        ax,
        title="Hit rate by cache budget (grey: under one token cycle)",
        xlabel="cache budget (MiB)",
        ylabel=f"hit rate, {phase}",
    )
    legend_below(ax)
    return ax


def _names(data: pd.DataFrame) -> pd.Series:
    """Name each row's policy, with its parameters where one policy stands with several."""
    several = data.groupby("policy")["params"].transform("nunique") > 1
    return data["policy"].where(~several, data["policy"] + " " + data["params"])


def _over_budget(data: pd.DataFrame) -> pd.Series:
    """Tell which rows ran over their budget; a bound has no run, and so did not."""
    return data["over_budget_decode"].astype("boolean").fillna(False).astype(bool)
