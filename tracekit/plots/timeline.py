"""Residency timeline: what each token found in the cache, layer by layer."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import Patch

from tracekit.analysis.runs import residency_timeline
from tracekit.figures import in_mib
from tracekit.plots.kinds import register
from tracekit.plots.series import series_names
from tracekit.plots.style import (
    BLACK,
    ORANGE,
    axes_or_new,
    finish,
    layer_range,
    turn_starts,
    whole_numbers,
)

HIT, MISS, PREFETCHED = "#deebf7", "#08306b", ORANGE  # pale, dark: in grey print too
MAX_COLUMNS = 1200
_CARET_DOWN = 7  # matplotlib's number of the marker whose tip is at its point


@register(
    "timeline",
    "token × layer: hit, miss or prefetched under one policy (or as recorded)",
    lambda trace, choices: residency_timeline(
        trace, choices.one_policy_or("lru"), choices.one_budget(), choices.bypass
    ),
    reads=("policies", "params", "cache_bytes", "bypass"),
    at_one_budget=True,
)
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
        lookup stay blank; a mark above the cells is where a turn begins.
    """
    layers = layer_range(data["layer"].to_numpy())
    n_tokens = int(data["token"].max()) + 1
    per_column = -(-n_tokens // MAX_COLUMNS)
    n_columns = -(-n_tokens // per_column)
    ax = axes_or_new(ax)
    ax.imshow(
        _image(data, layers, n_columns, per_column),
        **{
            "aspect": "auto",
            "origin": "lower",
            "interpolation": "nearest",
            "extent": (-0.5, n_columns * per_column - 0.5, layers[0] - 0.5, layers[-1] + 0.5),
            **style,
        },
    )
    shades = [("all hit", to_rgb(HIT)), ("half missed", _between(HIT, MISS))]
    shades.append(("all missed", to_rgb(MISS)))
    if data["prefetched"].any():
        shades += [
            ("half prefetched, half hit", _between(HIT, PREFETCHED)),
            ("half prefetched, half missed", _between(MISS, PREFETCHED)),
            ("all prefetched", to_rgb(PREFETCHED)),
        ]
    handles: list[Artist] = [
        Patch(facecolor=shade, edgecolor=BLACK, linewidth=0.5, label=name) for name, shade in shades
    ]
    starts = turn_starts(data)
    if len(starts):
        handles += ax.plot(
            starts - 0.5,
            np.full(len(starts), layers[-1] + 0.5),
            color=BLACK,
            linestyle="none",
            marker=_CARET_DOWN,
            markersize=5,
            clip_on=False,
            label="a turn begins",
        )
    ax.set_xlim(-0.5, n_tokens - 0.5)
    ax.set_ylim(layers[0] - 0.5, layers[-1] + 0.5)
    whole_numbers(ax, "x")
    whole_numbers(ax, "y")
    return finish(
        ax,
        title=_title(data),
        xlabel="decoded token" if (data["kept_tokens"] == 1).all() else "decode pass",
        ylabel="layer",
        grid=False,
        handles=handles,
    )


def _image(data: pd.DataFrame, layers: np.ndarray, n_columns: int, per_column: int) -> np.ndarray:
    """Return the mean colour of the lookups of each cell, float64 [layers, columns, 3]."""
    row = data["layer"].to_numpy() - layers[0]
    cell = row * n_columns + data["token"].to_numpy() // per_column
    size = len(layers) * n_columns

    def sums(column: str) -> np.ndarray:
        return np.bincount(cell, data[column].to_numpy(np.float64), size)

    colour = np.zeros((size, 3))
    for column, shade in (("hits", HIT), ("misses", MISS), ("prefetched", PREFETCHED)):
        colour += np.multiply.outer(sums(column), to_rgb(shade))
    lookups = sums("lookups")
    image = np.ones((size, 3))
    known = lookups > 0
    image[known] = colour[known] / lookups[known, None]
    return image.reshape(len(layers), n_columns, 3).clip(0, 1)


def _between(one: str, other: str) -> tuple[float, float, float]:
    red, green, blue = np.mean([to_rgb(one), to_rgb(other)], axis=0)
    return float(red), float(green), float(blue)


def _title(data: pd.DataFrame) -> str:
    hits = (data["hits"].sum() + data["prefetched"].sum()) / data["lookups"].sum()
    budget = data["cache_bytes"].iloc[0]
    at = "" if np.isnan(budget) else f" at {in_mib(budget)}"
    name = series_names(data.iloc[:1]).item()  # one policy, so its parameters do not differ
    return f"{name}{at}: {100 * hits:.1f} % of decode lookups resident"
