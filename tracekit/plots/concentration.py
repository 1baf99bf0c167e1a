"""How even routing is: entropy and top-1 share, layer by layer."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.concentration import routing_concentration
from tracekit.plots.kinds import register
from tracekit.plots.series import LINE, thin_markers
from tracekit.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    axes_or_new,
    finish,
    layer_range,
    percent_axis,
    whole_numbers,
)

_LINES = {
    "load_entropy": {
        "label": "entropy of the layer's load, of log2(n)",
        "color": BLUE,
        "marker": "o",
        "linestyle": "-",
    },
    "weight_entropy": {
        "label": "entropy of a routing's weights, of log2(k)",
        "color": ORANGE,
        "marker": "s",
        "linestyle": "--",
    },
    "top1_share": {
        "label": "weight of a routing's top expert",
        "color": GREEN,
        "marker": "^",
        "linestyle": "-.",
    },
}


@register(
    "concentration",
    "routing entropy and top-1 share, layer by layer",
    lambda trace, choices: routing_concentration(trace),
    takes_counts=True,
)
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
    for column, line in _LINES.items():
        if table[column].notna().any():
            ax.plot(layers, table[column], **{**LINE, **thin_markers(line, len(layers)), **style})
    percent_axis(ax, top=1.02)
    whole_numbers(ax)
    return finish(
        ax, title="How evenly experts are used, and weighted", xlabel="layer", ylabel="share"
    )
