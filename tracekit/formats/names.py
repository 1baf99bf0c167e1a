"""Names that tools give to the columns of a routing trace, and the one that is used here.

In: names of columns, keys or arrays. Out: which of them is which column. This module reads nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tracekit.trace.schema import DECODE, HIT, MISS, PREFETCHED, PREFILL

# The name here, and what else it is called; the first name that a file has counts.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "experts": (
        "experts",
        "expert",
        "expert_ids",
        "expert_id",
        "expert_idx",
        "selected_experts",
        "selected_ids",
        "topk_ids",
        "top_indices",
        "routed_experts",
    ),
    "layer": ("layer", "layer_id", "layer_idx"),
    # Beside one of the others, `token` may be its id or its text.
    "token": (
        "token_index",
        "token_idx",
        "token_position",
        "position",
        "pos",
        "t",
        "token",
        "step",
    ),
    "prompt": ("prompt", "prompt_id", "turn", "request", "request_id"),
    "slot": ("slot", "rank"),
    "weights": (
        "weights",
        "weight",
        "scores",
        "score",
        "gate_weights",
        "gate_weight",
        "selected_probabilities",
        "topk_weights",
    ),
    "phase": ("phase",),
    "pass": ("pass", "pass_id", "forward_pass_id"),
    "token_id": ("token_id", "token_ids", "input_ids"),
    "residency": ("residency",),
    "dropped": ("dropped",),
    "kept": ("kept",),
    "expert_bytes": ("expert_bytes",),
}
# Columns of one value a slot, as the experts have it.
OF_SLOTS = ("experts", "weights", "residency", "dropped")
# Columns whose values may be words, and the numbers that these stand for; "": unknown.
_NO_OR_YES = {"0": 0, "no": 0, "false": 0, "1": 1, "yes": 1, "true": 1}
WORDS: Mapping[str, Mapping[str, int]] = {
    "phase": {
        **dict.fromkeys(("prefill", "prompt", "p", "0"), PREFILL),
        **dict.fromkeys(("decode", "generated", "generate", "generation", "d", "1"), DECODE),
    },
    "residency": {
        "0": MISS,
        "miss": MISS,
        "1": HIT,
        "hit": HIT,
        "2": PREFETCHED,
        "prefetched": PREFETCHED,
    },
    "dropped": _NO_OR_YES,
    "kept": _NO_OR_YES,
}
# What a wrong value of such a column is, for sentences.
NEITHER = {
    "phase": "neither prefill nor decode (nor prompt or generated, 0 or 1)",
    "residency": "neither miss, hit nor prefetched (nor 0, 1 or 2)",
    "dropped": "neither true nor false (nor 1 or 0)",
    "kept": "neither true nor false (nor 1 or 0)",
}


@dataclass(frozen=True)
class Named:
    """The columns of a file by the names that are used here.

    Attributes
    ----------
    found : dict
        From the name here to the name in the file.
    """

    found: Mapping[str, str]

    def __contains__(self, name: str) -> bool:
        return name in self.found

    def __getitem__(self, name: str) -> str:
        return self.found[name]

    def missing(self, names: Collection[str]) -> list[str]:
        """Return those of `names` that the file does not have."""
        return [name for name in names if name not in self.found]


def named(columns: Collection[str]) -> Named:
    """Find the columns of a file by what they are called, in any case of letters."""
    by_lower = {column.strip(" ").lower(): column for column in columns}
    found: dict[str, str] = {}
    for name, aliases in ALIASES.items():
        for alias in aliases:
            if alias in by_lower and by_lower[alias] not in found.values():
                found[name] = by_lower[alias]
                break
    return Named(found)


def slot_order(names: Named) -> str:
    """Return what is known of the order of the slots: a column of slots ranks them."""
    return "ranked" if "slot" in names else "unknown"
