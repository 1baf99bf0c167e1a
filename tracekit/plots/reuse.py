"""Reuse distance: how much else is touched before an expert is needed again."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tracekit.plots.style import (
    BLUE,
    GREY,
    MIB,
    VERMILION,
    axes_or_new,
    finish,
    in_mib,
    legend_below,
    percent_axis,
)


def plot_reuse(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw the distribution of reuse distances.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.reuse_distance`, in bytes or in tokens.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.bar``.

    Returns
    -------
    Axes
        Bars over a logarithmic axis; of distances in bytes also the token cycle and the budget,
        left of which LRU hits. First uses have no distance; their share stands in the title.
    """
    ax = axes_or_new(ax)
    in_bytes = data["unit"].iloc[0] == "bytes"
    scale = MIB if in_bytes else 1
    reused = data[np.isfinite(data["high"])]
    low, high = reused["low"] / scale, reused["high"] / scale
    ax.bar(
        low,
        reused["share"],
        width=high - low,
        align="edge",
        **{"color": BLUE, "edgecolor": "white", "linewidth": 0.3, **style},
    )
    if in_bytes:
        cycle = data["token_cycle_bytes"].iloc[0]
        ax.axvline(
            cycle / MIB, color=GREY, linestyle=":", label=f"one token cycle ({in_mib(cycle)})"
        )
        budget = data["budget_bytes"].iloc[0]
        ax.axvline(
            budget / MIB,
            color=VERMILION,
            linestyle="--",
            label=f"cache budget ({in_mib(budget)})",
        )
    first = data["share"][~np.isfinite(data["high"])].sum()
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    percent_axis(ax)

    finish(
        ax,
        title=f"Reuse distance of decode lookups ({100 * first:.1f} % are first uses, without one)",
        xlabel=f"{'distinct MiB touched' if in_bytes else 'tokens'} since the expert's last use",
        ylabel="share of lookups",
    )
    legend_below(ax, columns=3)
    return ax
