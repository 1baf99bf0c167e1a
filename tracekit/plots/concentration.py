"""Routing entropy and top-1 share, layer by layer."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    axes_or_new,
    finish,
    layer_range,
    legend_below,
    percent_axis,
    thin_markers,
    whole_numbers,
)

_LINES = {
    "load_entropy": (
        "entropy of the layer's load, of log2(n)",
        {"color": BLUE, "marker": "o", "linestyle": "-"},
    ),
    "weight_entropy": (
        "entropy of a routing's weights, of log2(k)",
        {"color": ORANGE, "marker": "s", "linestyle": "--"},
    ),
    "top1_share": (
        "weight of a routing's top expert",
        {"color": GREEN, "marker": "^", "linestyle": "-."},
    ),
}


def plot_concentration(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how even each layer's routing is.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.routing_concentration`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.plot`` for all lines.

    Returns
    -------
    Axes
        Entropies as shares of their maximum, log2(n_expert) and log2(k). A quantity that the
        trace does not tell (unknown weights) has no line.
    """
    ax = axes_or_new(ax)
    layers = layer_range(data["layer"].to_numpy())
    table = data.set_index("layer").reindex(layers)
    for column, (label, line) in _LINES.items():
        if table[column].notna().any():
            drawn = {"markersize": 4, "linewidth": 1.6, **thin_markers(line, len(layers))}
            ax.plot(layers, table[column], label=label, **{**drawn, **style})
    ax.set_ylim(0, 1.02)
    percent_axis(ax)
    whole_numbers(ax)
    finish(
        ax,
        title="How evenly experts are used, and weighted",
        xlabel="layer",
        ylabel="share",
    )
    legend_below(ax)
    return ax
