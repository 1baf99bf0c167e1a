"""What a policy gains over another: points of hit rate by cache budget, with intervals."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.figures import MIB
from tracekit.plots.style import (
    BLACK,
    axes_or_new,
    budget_axis,
    error_bars,
    finish,
    legend_below,
    policy_series,
)

_DODGE = 0.008  # of the axis


def plot_gains(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how many more decode lookups hit than under the baseline, by cache budget.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.hit_rate_gains`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.errorbar`` for every policy.

    Returns
    -------
    Axes
        One line a policy, with bars of the 95 % interval, side by side around the level of no
        gain; the region under one token cycle is grey.
    """
    ax = axes_or_new(ax)
    ax.axhline(0, color=BLACK, linewidth=1)
    baseline = data["baseline"].iloc[0]
    series = policy_series(data)
    apart = _DODGE * data["cache_bytes"].max() / MIB
    for place, (name, look, rows) in enumerate(series):
        rows = rows.sort_values("cache_bytes")
        gain = 100 * rows["gain"]
        bars = error_bars(gain, 100 * rows["ci95_low"], 100 * rows["ci95_high"])
        budget = rows["cache_bytes"] / MIB + apart * (place - (len(series) - 1) / 2)
        ax.errorbar(budget, gain, **{**look, **bars, "label": name, **style})
    budget_axis(ax, data["cache_bytes"], data["token_cycle_bytes"].iloc[0])
    finish(
        ax,
        title=f"Gain in decode hit rate over {baseline} (bars: 95 % intervals)",
        xlabel="cache budget (MiB)",
        ylabel=f"decode hit rate over {baseline} (points)",
    )
    legend_below(ax)
    return ax
