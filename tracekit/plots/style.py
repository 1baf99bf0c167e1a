"""The look that all plots share: one palette, one way to make an Axes, the usual marks.

Colours are Okabe and Ito's ("Color Universal Design", 2008), and two dark ones that stay as far from
them: readers with any colour vision tell them apart. Every series also has a line style and a marker
of its own, so that a print in grey stays readable. Nothing here touches matplotlib's global state.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tracekit.figures import MIB, in_mib
from tracekit.policies import POLICIES

BLACK, GREY, PALE = "#000000", "#767676", "#d9d9d9"
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
ORANGE, VERMILION, PURPLE = "#E69F00", "#D55E00", "#CC79A7"
INDIGO, BROWN = "#332288", "#7A3B10"

SEQUENTIAL = "Blues"  # light to dark, so grey prints keep the order; 0 is white

_CHARACTERS_AN_INCH, _HANDLE_CHARACTERS = 20, 8  # of a legend in small type

# Blue is the reference's, LRU or stale-gate, also where that has no line: nothing else takes it.
_CYCLE = (ORANGE, GREEN, VERMILION, PURPLE, SKY, INDIGO, BROWN)
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
_FEW = 4  # points: a line of fewer is nothing without markers

# The same name has the same look in every plot; what is not here takes what is free.
_KNOWN: dict[str, dict[str, Any]] = {
    # Above the others: with experts of one size Belady's line is the bound, and shows in the gaps.
    "bound": {"color": BLACK, "linestyle": (0, (4, 2)), "marker": "None", "zorder": 2.5},
    "belady": {"color": GREY, "linestyle": "-", "marker": "None"},
    "lru": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "lfu": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "layer-lru": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "layer-lfu": {"color": BROWN, "linestyle": ":", "marker": "v"},
    "ring": {"color": INDIGO, "linestyle": "-", "marker": "h"},
    "random": {"color": PURPLE, "linestyle": ":", "marker": "x"},
    "retention": {"color": SKY, "linestyle": "--", "marker": "D"},
    "prefetch": {"color": VERMILION, "linestyle": "-.", "marker": "P"},
    "recorded": {"color": BLACK, "linestyle": "-", "marker": "None"},
    "ctrl": {"color": BLACK, "linestyle": (0, (4, 2)), "marker": "None"},
    "stale-gate": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "stale-gate-renorm": {"color": PURPLE, "linestyle": "--", "marker": "D"},
    "stale-gate-fit": {"color": SKY, "linestyle": "-.", "marker": "v"},
    "embedding-gate": {"color": VERMILION, "linestyle": "-", "marker": "P"},
    "token-table": {"color": BROWN, "linestyle": "--", "marker": "X"},
    "combined": {"color": INDIGO, "linestyle": "-.", "marker": "h"},
    "prev-token": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "layer-lag": {"color": BROWN, "linestyle": "-.", "marker": "d"},
    "static-hot": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "random-guess": {"color": GREY, "linestyle": ":", "marker": "None"},
}
# The markers of short lines that are else drawn without.
_SPARSE = {"bound": "_", "belady": "*", "recorded": "x"}


def axes_or_new(ax: Axes | None, size: tuple[float, float] = (7.2, 4.2)) -> Axes:
    """Return `ax`, or the only Axes of a new figure of `size` inches that no backend manages."""
    if ax is None:
        ax = Figure(figsize=size, layout="constrained").subplots()
    return ax


def policy_series(data: pd.DataFrame) -> list[tuple[str, dict[str, Any], pd.DataFrame]]:
    """Part `data` by policy and variant: the name, look and rows of each, in their order."""
    names = series_names(data)
    policies = dict(zip(names, data["policy"], strict=True))
    looks = series_styles(list(policies), list(policies.values()))
    return [(name, look, data[names == name]) for name, look in looks.items()]


def series_names(data: pd.DataFrame) -> pd.Series:
    """Name the policy of each row, with its predictor, and with what tells its variants apart.

    ``retention (stale-gate)``, ``random seed=1``, ``drop-cold (leaves experts out)``: `data` has the columns
    ``policy`` and ``params``, a mapping of names to values.
    """
    params = list(data["params"])
    values: dict[tuple[str, str], set[Any]] = {}
    for policy, of_row in zip(data["policy"], params, strict=True):
        for field, value in of_row.items():
            values.setdefault((policy, field), set()).add(value)
    names = []
    for policy, of_row in zip(data["policy"], params, strict=True):
        predictor = f" ({of_row['predictor']})" if "predictor" in of_row else ""
        apart = [
            f" {field}={value}"
            for field, value in of_row.items()
            if field != "predictor" and len(values[policy, field]) > 1
        ]
        lossy = " (leaves experts out)" if policy in _lossy() else ""
        names.append(f"{policy}{predictor}{lossy}{''.join(apart)}")
    return pd.Series(names, index=data.index, dtype=object)


def _lossy() -> set[str]:
    return {cls.name for cls in POLICIES if cls.lossy}


def series_styles(
    names: Sequence[str], policies: Sequence[str] | None = None
) -> dict[str, dict[str, Any]]:
    """Colour, line style and marker of each of `names`, distinct within one plot.

    `policies` are the policies behind the names, where those say more: the first variant of a
    policy has the policy's look.
    """
    looks: dict[str, dict[str, Any]] = {}
    for name, policy in zip(names, policies or names, strict=True):
        look = _KNOWN.get(policy)
        if look is not None and look not in looks.values():
            looks[name] = look
    for name in names:
        if name not in looks:
            looks[name] = _free_look(list(looks.values()))
    return {name: {"linewidth": 1.6, "markersize": 4, **looks[name]} for name in names}


def _free_look(taken: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a colour, a marker and a line style that are rarest among those `taken`."""
    colors = [look["color"] for look in taken]
    color = min(_CYCLE, key=colors.count)
    markers = [look["marker"] for look in taken]
    lines = [look["linestyle"] for look in taken]
    beside = [look["linestyle"] for look in taken if look["color"] == color]
    return {
        "color": color,
        "marker": min(_MARKERS, key=markers.count),
        "linestyle": min(_LINES, key=lambda line: (beside.count(line), lines.count(line))),
    }


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


def add_caption(ax: Axes, text: str) -> None:
    """Write in small type below the figure what it is of.

    Parameters
    ----------
    ax : Axes
        Of a figure that holds nothing else.
    text : str
        Such as the names of the model and the trace.
    """
    # What fonts have no form for, such as a line feed or a byte that is no text, gets their mark.
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
    ax.figure.supxlabel(text, x=0.995, ha="right", fontsize="x-small", color=GREY, parse_math=False)


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
    label = f"one token cycle ({in_mib(cycle_bytes)})"
    ax.axvline(cycle_bytes / MIB, color=GREY, linewidth=1, label=label, zorder=1)
    ax.set_xlim(left, (1.08 if budgets.nunique() < _FEW else 1.03) * most)
    grouped_numbers(ax)


def percent_axis(ax: Axes, axis: str = "y") -> None:
    """Print the fractions of an axis as percent."""
    getattr(ax, f"{axis}axis").set_major_formatter(lambda value, _: f"{100 * value:g} %")


def whole_numbers(ax: Axes, axis: str = "x") -> None:
    """Put the ticks of an axis (layers, tokens, lags) on whole numbers only."""
    getattr(ax, f"{axis}axis").set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    grouped_numbers(ax, axis)


def grouped_numbers(ax: Axes, axis: str = "x") -> None:
    """Print the numbers of an axis as `in_mib` does: thousands separated."""
    getattr(ax, f"{axis}axis").set_major_formatter(lambda value, _: f"{value:,.10g}")


def thin_markers(style: dict[str, Any], points: int, at_most: int = 24) -> dict[str, Any]:
    """Mark only every n-th of many points, so that markers do not merge into a band."""
    return {**style, "markevery": max(1, points // at_most)}


def sparse_marker(style: dict[str, Any], rows: pd.DataFrame) -> dict[str, Any]:
    """Make the points of a policy's line stand out where they are few."""
    if len(rows) >= _FEW:
        return style
    marker = _SPARSE.get(rows["policy"].iloc[0], style["marker"])
    wide = {"markersize": 14, "markeredgewidth": 2} if marker == "_" else {"markersize": 7}
    return {**style, **wide, "marker": marker}


def marked_if_few(style: dict[str, Any], points: int, few: int = 40) -> dict[str, Any]:
    """Mark the points of a short line, which may be a single one, and leave a long line bare."""
    return {**style, "marker": "." if points <= few else "None"}


def layer_range(layers: np.ndarray) -> np.ndarray:
    """Every layer number from the first to the last, also those that are not routed."""
    return np.arange(layers.min(), layers.max() + 1)
