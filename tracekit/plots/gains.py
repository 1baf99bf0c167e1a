"""What a policy gains over another: points of hit rate by cache budget, with intervals."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.plots.style import (
    BLACK,
    MIB,
    axes_or_new,
    error_bars,
    finish,
    legend_below,
    mark_token_cycle,
    series_styles,
)


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
        One line a policy, with bars of the 95 % interval, around the level of no gain; the region
        under one token cycle is grey.
    """
    ax = axes_or_new(ax)
    ax.axhline(0, color=BLACK, linewidth=1)
    for name, look in series_styles(list(data["policy"].unique())).items():
        rows = data[data["policy"] == name].sort_values("cache_bytes")
        gain = 100 * rows["gain"]
        bars = error_bars(gain, 100 * rows["ci95_low"], 100 * rows["ci95_high"])
        ax.errorbar(rows["cache_bytes"] / MIB, gain, **{**look, **bars, "label": name, **style})
    mark_token_cycle(ax, data["token_cycle_bytes"].iloc[0])
    ax.set_xlim(left=0)
    finish(
        ax,
        title="Gain in hit rate over the baseline (bars: 95 % intervals)",
        xlabel="cache budget (MiB)",
        ylabel="gain, decode (points)",
    )
    legend_below(ax)
    return ax
