"""The name and the look of each line: a policy or predictor looks the same in every plot.

Every series has a line style and a marker of its own besides its colour, so that a print in grey
stays readable.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from tracekit.figures import settings
from tracekit.plots.style import (
    BLACK,
    BLUE,
    BROWN,
    FEW,
    GREEN,
    GREY,
    INDIGO,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
)
from tracekit.policies import POLICIES
from tracekit.replaying.labels import differing

Look = dict[str, Any]  # keyword arguments of matplotlib
LINE: Look = {"linewidth": 1.6, "markersize": 4}

# Blue is for the reference, LRU or stale-gate: nothing else takes it, even where that has no line.
_CYCLE = (ORANGE, GREEN, VERMILION, PURPLE, SKY, INDIGO, BROWN)
_LINES = ("-", "--", "-.", ":")
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "p", "h")

# What is not here takes what is free.
_KNOWN: Mapping[str, Look] = {
    # Above the others: with experts of one size Belady's line is the bound, and shows in the gaps.
    "bound": {"color": BLACK, "linestyle": (0, (4, 2)), "marker": "None", "zorder": 2.5},
    "belady": {"color": GREY, "linestyle": "-", "marker": "None"},
    "lru": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "lfu": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "layer-lru": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "layer-lfu": {"color": BROWN, "linestyle": ":", "marker": "v"},
    "follow": {"color": VERMILION, "linestyle": "-", "marker": "D"},
    "ring": {"color": INDIGO, "linestyle": "-", "marker": "h"},
    "random": {"color": PURPLE, "linestyle": ":", "marker": "x"},
    "retention": {"color": SKY, "linestyle": "--", "marker": "D"},
    "prefetch": {"color": VERMILION, "linestyle": "-.", "marker": "P"},
    # Above the others too: a replay of the recording's own policy is the same line.
    "recorded": {"color": BLACK, "linestyle": (0, (1, 2)), "marker": "None", "zorder": 2.5},
    "ctrl": {"color": BLACK, "linestyle": (0, (4, 2)), "marker": "None"},
    "stale-gate": {"color": BLUE, "linestyle": "-", "marker": "o"},
    "stale-gate-renorm": {"color": PURPLE, "linestyle": "--", "marker": "D"},
    "stale-gate-fit": {"color": SKY, "linestyle": "-.", "marker": "v"},
    "embedding-gate": {"color": VERMILION, "linestyle": "-", "marker": "P"},
    "token-table": {"color": BROWN, "linestyle": "--", "marker": "X"},
    "recall": {"color": VERMILION, "linestyle": "--", "marker": "v"},
    "recall-gate": {"color": BLACK, "linestyle": "-", "marker": "p"},
    "layer-table": {"color": SKY, "linestyle": ":", "marker": "<"},
    "combined": {"color": INDIGO, "linestyle": "-.", "marker": "h"},
    "prev-token": {"color": ORANGE, "linestyle": "--", "marker": "s"},
    "layer-lag": {"color": BROWN, "linestyle": "-.", "marker": "d"},
    "static-hot": {"color": GREEN, "linestyle": "-.", "marker": "^"},
    "random-guess": {"color": GREY, "linestyle": ":", "marker": "None"},
}
# The markers of lines that have none, where such a line has few points.
_SPARSE = {"bound": "_", "belady": "*", "recorded": "x"}


def policy_series(data: pd.DataFrame) -> list[tuple[str, Look, pd.DataFrame]]:
    """Part `data` by policy and variant: the name, look and rows of each, in their order."""
    names = series_names(data)
    policies = dict(zip(names, data["policy"], strict=True))
    looks = series_styles(list(policies), list(policies.values()))
    return [(name, look, data[names == name]) for name, look in looks.items()]


def series_names(data: pd.DataFrame) -> pd.Series:
    """Name the policy of each row, with its predictor, and with what tells its variants apart.

    ``retention (stale-gate)``, ``random seed=1``, ``drop-cold (leaves experts out)``: `data` has
    the columns ``policy`` and ``params``, a mapping of names to values, and where it is of replays
    ``bypass``. A bound names the policies that it is of. A legend has little room: what a table says
    of a row as well, it leaves out.
    """
    several = differing(zip(data["policy"], data["params"], strict=True))
    lossy = {cls.name for cls in POLICIES if cls.lossy}
    limits = {cls.name for cls in POLICIES if cls.gives_limits}
    bypass = data["bypass"] if "bypass" in data else [False] * len(data)

    def name(policy: str, params: Mapping[str, Any], drops: bool) -> str:
        words = [policy]
        if policy in limits:
            words.append("(a load may be dropped)" if drops else "(each load is kept)")
        elif drops:
            words.append("(bypass)")
        if "predictor" in params:
            words.append(f"({params['predictor']})")
        if policy in lossy:
            words.append("(leaves experts out)")
        apart = {
            field: value
            for field, value in params.items()
            if field != "predictor" and (policy, field) in several
        }
        return " ".join([*words, settings(apart)]).rstrip()

    rows = zip(data["policy"], data["params"], bypass, strict=True)
    names = [name(*of_row) for of_row in rows]
    return pd.Series(names, index=data.index, dtype=object)


def series_styles(names: Sequence[str], policies: Sequence[str] | None = None) -> dict[str, Look]:
    """Return the colour, line style and marker of each of `names`, distinct within one plot.

    `policies` are the policies behind the names, where those say more: the first variant of a
    policy has the policy's look.
    """
    looks: dict[str, Look] = {}
    for name, policy in zip(names, policies or names, strict=True):
        look = _KNOWN.get(policy)
        if look is not None and look not in looks.values():
            looks[name] = look
    for name in names:
        if name not in looks:
            looks[name] = _free_look(list(looks.values()))
    return {name: {**LINE, **looks[name]} for name in names}


def _free_look(taken: Sequence[Look]) -> Look:
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


def thin_markers(look: Look, points: int, at_most: int = 24) -> Look:
    """Mark only every n-th of many points, so that markers do not merge into a band."""
    return {**look, "markevery": max(1, points // at_most)}


def sparse_marker(look: Look, rows: pd.DataFrame) -> Look:
    """Make the points of a policy's line stand out where they are few."""
    if len(rows) >= FEW:
        return look
    marker = _SPARSE.get(rows["policy"].iloc[0], look["marker"])
    wide = {"markersize": 14, "markeredgewidth": 2} if marker == "_" else {"markersize": 7}
    return {**look, **wide, "marker": marker}


def marked_if_few(look: Look, points: int, few: int = 40) -> Look:
    """Mark the points of a short line, which may be a single one, and leave a long line bare."""
    return {**look, "marker": "." if points <= few else "None"}
