"""How long each layer waits for its experts, and computes."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.layer_times import layer_times
from tracekit.plots.kinds import register
from tracekit.plots.style import BLUE, ORANGE, axes_or_new, finish, layer_range, whole_numbers

_BARS = {
    "compute_ms": {"label": "computing, the next layer's attention included", "color": BLUE},
    "wait_ms": {"label": "waiting for its experts: evicting and reading", "color": ORANGE},
}


@register(
    "layer-times",
    "time of each layer in a decode pass: waiting for its experts, and computing",
    lambda trace, choices: layer_times(trace),
)
def plot_layer_times(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw the mean time of each layer in a decode pass.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.layer_times`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.bar`` for all bars.

    Returns
    -------
    Axes
        A bar for each layer: waiting stands on computing. What the trace does not carry has no bar.
    """
    ax = axes_or_new(ax)
    layers = layer_range(data["layer"].to_numpy())
    table = data.set_index("layer").reindex(layers)
    below = 0.0 * table["compute_ms"].fillna(0)
    for column, bar in _BARS.items():
        if table[column].notna().any():
            height = table[column].fillna(0)
            ax.bar(layers, height, bottom=below, **{"width": 0.8, **bar, **style})
            below = below + height
    whole_numbers(ax)
    return finish(
        ax, title="Time of each layer in a decode pass", xlabel="layer", ylabel="ms (mean)"
    )
