"""Expert popularity: a heat map of layer × expert."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm

from tracekit.analysis.popularity import expert_popularity
from tracekit.plots.kinds import register
from tracekit.plots.style import SEQUENTIAL, axes_or_new, finish, layer_range, whole_numbers


@register(
    "popularity",
    "how often each expert is selected, layer × expert",
    lambda trace, choices: expert_popularity(trace),
    takes_counts=True,
)
def plot_popularity(
    data: pd.DataFrame, *, ax: Axes | None = None, by: str = "expert", **style: Any
) -> Axes:
    """Draw how often each expert of each layer is selected.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.expert_popularity`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    by : {"expert", "rank"}
        Columns in the order of expert ids, or each layer's most selected expert first.
    **style
        Passed to ``Axes.imshow``.

    Returns
    -------
    Axes
        The colour is the share of the layer's selections as a multiple of an even share, on a
        square-root scale. Rows of layers that are not routed stay blank.
    """
    table = data.pivot_table(index="layer", columns=by, values="share") * data["expert"].nunique()
    table = table.reindex(layer_range(table.index.to_numpy()))
    ax = axes_or_new(ax)
    image = ax.imshow(
        table.to_numpy(),
        **{
            "aspect": "auto",
            "origin": "lower",
            "interpolation": "nearest",
            "cmap": SEQUENTIAL,
            "norm": PowerNorm(0.5, vmin=0, vmax=float(np.nanmax(table.to_numpy()))),
            "extent": (-0.5, table.shape[1] - 0.5, table.index[0] - 0.5, table.index[-1] + 0.5),
            **style,
        },
    )
    ax.figure.colorbar(image, ax=ax, label="selections, × an even share")
    whole_numbers(ax, "x")
    whole_numbers(ax, "y")
    what, xlabel = {
        "expert": ("", "expert id"),
        "rank": (", each layer's favourites first", "expert, by rank in its layer"),
    }[by]
    return finish(ax, title=f"Expert popularity{what}", xlabel=xlabel, ylabel="layer", grid=False)


@register(
    "popularity-sorted",
    "the same, each layer's favourites first",
    lambda trace, choices: expert_popularity(trace),
    takes_counts=True,
)
def plot_popularity_sorted(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw `plot_popularity` with each layer's most selected expert first."""
    return plot_popularity(data, ax=ax, by="rank", **style)
