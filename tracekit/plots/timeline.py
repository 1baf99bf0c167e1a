"""Residency timeline: what each token found in the cache, layer by layer."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from tracekit.figures import in_mib
from tracekit.plots.style import (
    BLACK,
    ORANGE,
    axes_or_new,
    finish,
    layer_range,
    legend_below,
    series_names,
    whole_numbers,
)

HIT, MISS, PREFETCHED = "#deebf7", "#08306b", ORANGE  # pale, dark: in grey print too
MAX_COLUMNS = 1200


def plot_timeline(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw token × layer, coloured by how many of its lookups hit, missed, or were prefetched.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.residency_timeline`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.imshow``.

    Returns
    -------
    Axes
        A cell's colour is the mean of its lookups' colours: half hits, half misses is halfway
        between the two. Neighbouring tokens of a long trace share a column. Layers without a
        lookup stay blank; a thin vertical line is where a turn begins.
    """
    layers = layer_range(data["layer"].to_numpy())
    n_tokens = int(data["token"].max()) + 1
    per_column = -(-n_tokens // MAX_COLUMNS)
    n_columns = -(-n_tokens // per_column)
    cell = (data["layer"].to_numpy() - layers[0]) * n_columns + data[
        "token"
    ].to_numpy() // per_column
    size = len(layers) * n_columns

    def summed(column: str) -> np.ndarray:
        return np.bincount(cell, data[column].to_numpy(np.float64), size)

    lookups = summed("lookups")
    colour = sum(
        np.multiply.outer(summed(column), to_rgb(shade))
        for column, shade in (("hits", HIT), ("misses", MISS), ("prefetched", PREFETCHED))
    )
    image = np.ones((size, 3))
    known = lookups > 0
    image[known] = colour[known] / lookups[known, None]

    ax = axes_or_new(ax)
    ax.imshow(
        image.reshape(len(layers), n_columns, 3).clip(0, 1),
        **{
            "aspect": "auto",
            "origin": "lower",
            "interpolation": "nearest",
            "extent": (-0.5, n_columns * per_column - 0.5, layers[0] - 0.5, layers[-1] + 0.5),
            **style,
        },
    )
    by_token = data.drop_duplicates("token").sort_values("token")
    starts = by_token["token"].to_numpy()[1:][np.diff(by_token["turn"].to_numpy()) != 0]
    for start in starts:
        ax.axvline(start - 0.5, color=BLACK, linewidth=0.6)
    ax.set_xlim(-0.5, n_tokens - 0.5)
    whole_numbers(ax, "x")
    whole_numbers(ax, "y")
    finish(ax, title=_title(data), xlabel="decoded token", ylabel="layer", grid="")
    shown = [("all hit", HIT), ("half missed", _between(HIT, MISS)), ("all missed", MISS)]
    if data["prefetched"].any():
        shown += [
            ("half prefetched, half hit", _between(HIT, PREFETCHED)),
            ("half prefetched, half missed", _between(MISS, PREFETCHED)),
            ("all prefetched", PREFETCHED),
        ]
    legend_below(
        ax, [Patch(facecolor=c, edgecolor=BLACK, linewidth=0.5, label=n) for n, c in shown]
    )
    return ax


def _between(one: str, other: str) -> tuple[float, ...]:
    return tuple((a + b) / 2 for a, b in zip(to_rgb(one), to_rgb(other), strict=True))


def _title(data: pd.DataFrame) -> str:
    hits = (data["hits"].sum() + data["prefetched"].sum()) / data["lookups"].sum()
    budget = data["cache_bytes"].iloc[0]
    at = "" if np.isnan(budget) else f" at {in_mib(budget)}"
    return f"{series_names(data).iloc[0]}{at}: {100 * hits:.1f} % of decode lookups resident"
