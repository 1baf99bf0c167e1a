"""How much would hit if the hottest experts were pinned."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.pinning import hottest_experts
from tracekit.plots.kinds import register
from tracekit.plots.series import LINE
from tracekit.plots.style import BLUE, GREY, axes_or_new, finish, percent_axis


@register(
    "pinning",
    "hits if the hottest experts were pinned, at each budget: an estimate",
    lambda trace, choices: hottest_experts(trace),
    takes_counts=True,
)
def plot_pinning(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw which share of the lookups would hit if the hottest experts stayed in memory.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.hottest_experts`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for the curve.

    Returns
    -------
    Axes
        Over the share of all experts that are pinned, or of their bytes where these are known. The
        dashed line is what even routing would give.
    """
    ax = axes_or_new(ax)
    known = bool(data["pinned_bytes"].notna().all())
    column = "pinned_bytes" if known else "pinned"
    share = data[column].to_numpy() / data[column].iloc[-1]
    hits = data["hit_rate"].to_numpy()
    ax.plot(
        np.insert(100 * share, 0, 0.0),
        np.insert(hits, 0, 0.0),
        **{**LINE, "color": BLUE, "label": "hottest experts", **style},
    )
    ax.plot([0, 100], [0, 1], color=GREY, linestyle="--", linewidth=1, label="even routing")
    ax.set_xlim(0, 100)
    percent_axis(ax, top=1.02)
    what = "expert bytes" if known else "experts"
    return finish(
        ax,
        title="Hits with pinned experts, an estimate",
        xlabel=f"pinned, % of all {what}",
        ylabel="lookups that hit",
    )
