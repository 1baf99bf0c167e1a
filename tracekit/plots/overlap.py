"""Overlap of routings by lag, along the tokens and along the layers."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.plots.style import (
    BLUE,
    GREY,
    ORANGE,
    axes_or_new,
    finish,
    legend_below,
    percent_axis,
    whole_numbers,
)

_LINES = {
    "token": ("token to token, same layer", {"color": BLUE, "marker": "o", "linestyle": "-"}),
    "layer": ("layer to layer, same token", {"color": ORANGE, "marker": "s", "linestyle": "--"}),
}


def plot_overlap(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how much of a routing repeats the one a lag earlier.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.overlap_by_lag`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for both lines.

    Returns
    -------
    Axes
        Two lines with bands from the 10th to the 90th percentile of the layers, and chance.
    """
    ax = axes_or_new(ax)
    for direction, (label, line) in _LINES.items():
        rows = data[data["direction"] == direction]
        if rows.empty:
            continue
        drawn = {"markersize": 4, "linewidth": 1.6, **line, **style}
        ax.plot(rows["lag"], rows["overlap"], label=label, **drawn)
        ax.fill_between(
            rows["lag"],
            rows["overlap_p10"],
            rows["overlap_p90"],
            color=drawn["color"],
            alpha=0.15,
            linewidth=0,
        )
    chance = data["chance"].iloc[0]
    ax.axhline(chance, color=GREY, linestyle=":", label=f"chance ({100 * chance:.1f} %)")
    ax.set_ylim(bottom=0)
    percent_axis(ax)
    whole_numbers(ax)
    finish(
        ax,
        title="Overlap by lag (bands: 10 to 90 % of layers)",
        xlabel="lag (tokens, or MoE layers)",
        ylabel="experts in common, of k",
    )
    legend_below(ax)
    return ax
