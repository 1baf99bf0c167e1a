"""The look that all plots share: one palette, one way to make an Axes, the usual marks.

Colours are Okabe and Ito's ("Color Universal Design", 2008), which readers with any colour vision
tell apart; every series also has a line style and a marker of its own, so that a print in grey
stays readable. Nothing here touches matplotlib's global state.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

BLACK, GREY, PALE = "#000000", "#767676", "#d9d9d9"
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"

SEQUENTIAL = "Blues"  # light to dark, so grey prints keep the order; 0 is white

MIB = 2**20

_CHARACTERS_AN_INCH, _HANDLE_CHARACTERS = 20, 8  # of a legend in small type

_CYCLE = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# The same name has the same look in every plot; what is not here takes the next of the cycle.
_KNOWN: dict[str, dict[str, Any]] = {
    "bound": {"color": BLACK, "linestyle": (0, (4, 2)), "marker": "None"},
    "belady": {"color": GREY, "linestyle": "-", "marker": "None"},
    "lru": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "lfu": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "layer-lru": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "layer-lfu": {"color": VERMILION, "linestyle": ":", "marker": "v"},
    "random": {"color": PURPLE, "linestyle": ":", "marker": "x"},
    "retention": {"color": SKY, "linestyle": "--", "marker": "D"},
    "prefetch": {"color": VERMILION, "linestyle": "-.", "marker": "P"},
    "recorded": {"color": BLACK, "linestyle": "-", "marker": "None"},
    "ctrl": {"color": BLACK, "linestyle": (0, (4, 2)), "marker": "None"},
    "stale-gate": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "stale-gate-renorm": {"color": PURPLE, "linestyle": "--", "marker": "D"},
    "stale-gate-fit": {"color": SKY, "linestyle": "-.", "marker": "v"},
    "embedding-gate": {"color": VERMILION, "linestyle": "-", "marker": "P"},
    "token-table": {"color": SKY, "linestyle": "--", "marker": "X"},
    "combined": {"color": VERMILION, "linestyle": "-.", "marker": "D"},
    "prev-token": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "static-hot": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "random-guess": {"color": GREY, "linestyle": ":", "marker": "None"},
}


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (7.2, 4.2)) -> Axes:
    """Return `ax`, or the only Axes of a new figure of `size` inches that no backend manages."""
    if ax is None:
        ax = Figure(figsize=size, layout="constrained").subplots()
    return ax


def series_styles(names: list[str]) -> dict[str, dict[str, Any]]:
    """Colour, line style and marker of each of `names`, distinct within one plot."""
    taken = {_KNOWN[name]["color"] for name in names if name in _KNOWN}
    free = [color for color in _CYCLE if color not in taken] or list(_CYCLE)
    styles, place = {}, 0
    for name in names:
        if name in _KNOWN:
            styles[name] = {"linewidth": 1.6, "markersize": 4, **_KNOWN[name]}
            continue
        styles[name] = {
            "linewidth": 1.6,
            "markersize": 4,
            "color": free[place % len(free)],
            "linestyle": _LINES[place % len(_LINES)],
            "marker": _MARKERS[place % len(_MARKERS)],
        }
        place += 1
    return styles


def finish(ax: Axes, *, title: str, xlabel: str, ylabel: str, grid: str = "y") -> Axes:
    """Set the texts, take the spines off that carry no scale, and lay a pale grid below."""
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    if grid:
        ax.grid(axis=grid, color=PALE, linewidth=0.6)
        ax.set_axisbelow(True)
    return ax


def legend_below(ax: Axes, handles: list[Any] | None = None) -> None:
    """Put the legend under the plot, where it covers no data, as wide as the plot has room for.

    `handles` are the entries; by default what the Axes has drawn with a label.
    """
    if handles is None:
        handles, labels = ax.get_legend_handles_labels()
    else:
        labels = [handle.get_label() for handle in handles]
    if not handles:
        return
    width = ax.get_position().width * ax.figure.get_figwidth()  # inches
    columns = int(width * _CHARACTERS_AN_INCH / (max(map(len, labels)) + _HANDLE_CHARACTERS))
    ax.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        borderaxespad=4.5,  # of the font's size: below the axis label
        ncols=min(max(columns, 1), len(handles)),
        frameon=False,
        fontsize="small",
    )


def error_bars(value: pd.Series, low: pd.Series, high: pd.Series) -> dict[str, Any]:
    """Return the arguments that make ``Axes.errorbar`` draw an interval around `value`.

    A bootstrap's interval need not contain the value itself; matplotlib wants lengths.
    """
    lengths = [(value - low).clip(lower=0), (high - value).clip(lower=0)]
    return {"yerr": lengths, "capsize": 2, "elinewidth": 1}


def mark_token_cycle(ax: Axes, cycle_bytes: int) -> None:
    """Mark one token cycle on an x-axis of MiB, and grey what lies under it."""
    ax.axvspan(0, cycle_bytes / MIB, color=PALE, alpha=0.5, linewidth=0, zorder=0)
    label = f"one token cycle ({in_mib(cycle_bytes)})"
    ax.axvline(cycle_bytes / MIB, color=GREY, linewidth=1, label=label, zorder=1)


def percent_axis(ax: Axes, axis: str = "y") -> None:
    """Print the fractions of an axis as percent."""
    getattr(ax, f"{axis}axis").set_major_formatter(lambda value, _: f"{100 * value:g} %")


def whole_numbers(ax: Axes, axis: str = "x") -> None:
    """Put the ticks of an axis (layers, tokens, lags) on whole numbers only."""
    getattr(ax, f"{axis}axis").set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def thin_markers(style: dict[str, Any], points: int, at_most: int = 24) -> dict[str, Any]:
    """Mark only every n-th of many points, so that markers do not merge into a band."""
    return {**style, "markevery": max(1, points // at_most)}


def marked_if_few(style: dict[str, Any], points: int, few: int = 40) -> dict[str, Any]:
    """Mark the points of a short line, which may be a single one, and leave a long line bare."""
    return {**style, "marker": "." if points <= few else "None"}


def in_mib(size: float) -> str:
    """Write a number of bytes as MiB: digits where they matter, thousands separated."""
    mib = size / MIB
    return f"{mib:,.0f} MiB" if mib >= 100 else f"{mib:.3g} MiB"


def layer_range(layers: np.ndarray) -> np.ndarray:
    """Every layer number from the first to the last, also those that are not routed."""
    return np.arange(layers.min(), layers.max() + 1)
