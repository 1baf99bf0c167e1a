"""How much a routing repeats: overlap by lag, along the tokens and along the layers."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.overlap import overlap_by_lag
from tracekit.plots.kinds import register
from tracekit.plots.series import LINE
from tracekit.plots.style import (
    BLUE,
    GREY,
    ORANGE,
    axes_or_new,
    draw_band,
    finish,
    percent_axis,
    whole_numbers,
)

_LINES = {
    "token": {
        "label": "token to token, same layer",
        "color": BLUE,
        "marker": "o",
        "linestyle": "-",
    },
    "layer": {
        "label": "layer to layer, same token",
        "color": ORANGE,
        "marker": "s",
        "linestyle": "--",
    },
}


@register(
    "overlap",
    "experts that routings share, by lag in tokens and in layers",
    lambda trace, choices: overlap_by_lag(trace),
)
def plot_overlap(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how much of a routing repeats the one a lag earlier.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.overlap_by_lag`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for the line of each direction.

    Returns
    -------
    Axes
        Two lines with bands from the 10th to the 90th percentile of the layers, and chance.
    """
    ax = axes_or_new(ax)
    for direction, rows in data.groupby("direction", sort=False):
        look = {**LINE, **_LINES[direction], **style}
        ax.plot(rows["lag"], rows["overlap"], **look)
        draw_band(ax, rows["lag"], rows["overlap_p10"], rows["overlap_p90"], look["color"])
    chance = data["chance"].iloc[0]
    ax.axhline(chance, color=GREY, linestyle=":", label=f"chance ({100 * chance:.1f} %)")
    ax.set_ylim(bottom=0)
    percent_axis(ax)
    whole_numbers(ax)
    return finish(
        ax,
        title="Overlap by lag (bands: 10 to 90 % of layers)",
        xlabel="lag (tokens, or MoE layers)",
        ylabel="experts in common, of k",
    )
