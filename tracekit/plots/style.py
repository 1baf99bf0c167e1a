"""The look that all plots share: colours, one way to make an Axes, axes of usual quantities.

Colours are Okabe and Ito's ("Color Universal Design", 2008), and two dark ones that stay as far from
them: readers with any colour vision tell them apart. Nothing here touches matplotlib's global state.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from tracekit.figures import MIB, in_mib, visible
from tracekit.trace.errors import MissingDataError

BLACK, GREY, PALE = "#000000", "#767676", "#d9d9d9"
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
INDIGO, BROWN = "#332288", "#7A3B10"

SEQUENTIAL = "Blues"  # light to dark, so grey prints keep the order; 0 is white

MOST_LAYERS = 4096

FEW = 4  # points: a line of fewer is nothing without markers
_EDGE = 0.08  # inches that stay free at each edge of a figure
_CHARACTERS_AN_INCH, _HANDLE_CHARACTERS = 20, 8  # of a legend in small type


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (7.2, 4.2)) -> Axes:
    """Return `ax`, or the only Axes of a new figure of `size` inches that no backend manages."""
    if ax is None:
        layout = ConstrainedLayoutEngine(w_pad=_EDGE, h_pad=_EDGE)
        ax = Figure(figsize=size, layout=layout).subplots()
    return ax


def finish(
    ax: Axes,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    grid: bool = True,
    handles: Sequence[Artist] | None = None,
) -> Axes:
    """Set the texts and the legend, and lay a pale grid below what is drawn.

    The spines that carry no scale go. `handles` are the entries of the legend; by default all that
    was drawn with a label.
    """
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    if grid:
        ax.grid(axis="y", color=PALE, linewidth=0.6)
        ax.set_axisbelow(True)
    _legend_below(ax, ax.get_legend_handles_labels()[0] if handles is None else handles)
    as_plain_text(ax)
    return ax


def as_plain_text(artist: Artist) -> None:
    """Draw all texts of `artist` as they are: a name with $ in it is no formula."""
    for text in artist.findobj(Text):
        text.set_parse_math(False)
        text.set_text(visible(text.get_text()))


def _legend_below(ax: Axes, handles: Sequence[Artist]) -> None:
    """Put the legend under the plot, where it covers no data, as wide as the plot has room for."""
    if not handles:
        return
    labels = [shortened(visible(str(handle.get_label()))) for handle in handles]
    width = ax.get_window_extent().width / ax.figure.dpi  # inches
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


def shortened(name: str, most: int = 60) -> str:
    """Return `name`, cut to a length that a picture has room for."""
    return name if len(name) <= most else f"{name[: most - 1]}…"


def mark_token_cycle(line: Callable[..., object], cycle_bytes: int, **style: Any) -> None:
    """Draw one token cycle, in MiB, with ``Axes.axhline`` or ``Axes.axvline``."""
    label = f"one token cycle ({in_mib(cycle_bytes)})"
    line(cycle_bytes / MIB, **{"color": GREY, "linestyle": ":", "label": label, **style})


def draw_band(ax: Axes, x: Any, low: Any, high: Any, color: Any) -> None:
    """Shade what lies between `low` and `high`, so that the line within stays readable."""
    ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def error_bars(value: pd.Series, low: pd.Series, high: pd.Series) -> dict[str, Any]:
    """Return the arguments that make ``Axes.errorbar`` draw an interval around `value`.

    A bootstrap's interval need not contain the value itself; matplotlib wants lengths.
    """
    lengths = [(value - low).clip(lower=0), (high - value).clip(lower=0)]
    return {"yerr": lengths, "capsize": 2, "elinewidth": 1}


def budget_axis(ax: Axes, budgets: pd.Series, cycle_bytes: int) -> None:
    """Make x an axis of cache budgets in MiB, with one token cycle marked and grey under it."""
    most = max(budgets.max(), cycle_bytes) / MIB
    left = -0.02 * most if budgets.min() == 0 else 0  # room for whole markers
    ax.axvspan(left, cycle_bytes / MIB, color=PALE, alpha=0.5, linewidth=0, zorder=0)
    mark_token_cycle(ax.axvline, cycle_bytes, linestyle="-", linewidth=1, zorder=1)
    ax.set_xlim(left, (1.08 if budgets.nunique() < FEW else 1.03) * most)
    grouped_numbers(ax)


def percent_axis(ax: Axes, top: float | None = None) -> None:
    """Print the fractions of the y axis as percent; with `top`, from 0 to that."""
    if top is not None:
        ax.set_ylim(0, top)
    ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g} %")


def whole_numbers(ax: Axes, axis: Literal["x", "y"] = "x") -> None:
    """Put the ticks of an axis (layers, tokens, lags) on whole numbers only."""
    most = 7 if axis == "x" else 10  # side by side, numbers of six characters have room
    _axis(ax, axis).set_major_locator(MaxNLocator(most, integer=True, min_n_ticks=1))
    grouped_numbers(ax, axis)


def grouped_numbers(ax: Axes, axis: Literal["x", "y"] = "x") -> None:
    """Print the numbers of an axis as `in_mib` does: thousands separated."""
    _axis(ax, axis).set_major_formatter(lambda value, _: f"{value:,.10g}")


def _axis(ax: Axes, name: Literal["x", "y"]) -> Axis:
    return ax.xaxis if name == "x" else ax.yaxis


def layer_range(layers: np.ndarray) -> np.ndarray:
    """Return every layer number from the first to the last, also those that are not routed.

    Raises
    ------
    MissingDataError
        There are more than a picture can show.
    """
    if layers.max() - layers.min() >= MOST_LAYERS:
        raise MissingDataError(
            f"A picture has rows for {MOST_LAYERS:,} layers, and this trace has layers "
            f"{layers.min()} to {layers.max()}; `tracekit plot` writes the numbers behind it to a .csv."
        )
    return np.arange(layers.min(), layers.max() + 1)


def turn_starts(data: pd.DataFrame) -> np.ndarray:
    """Return the numbers of the tokens with which a turn begins, without the first token."""
    by_token = data.drop_duplicates("token").sort_values("token")
    begins = np.diff(by_token["turn"].to_numpy()) != 0
    starts: np.ndarray = by_token["token"].to_numpy()[1:][begins]
    return starts
