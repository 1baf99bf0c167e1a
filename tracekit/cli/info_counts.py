"""What ``tracekit info`` says of a file that holds counts and no trace.

In: counts, and what was asked about pinning. Out: facts for JSON, and lines of text.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tracekit.cli import pin_list
from tracekit.figures import counted

if TYPE_CHECKING:
    from tracekit.formats import ExpertCounts

_LACKS = "the order of the selections, so nothing can be replayed or predicted"
_WORDS = {
    "n_expert": "how many experts a layer has",
    "layers": "the numbers of the layers",
    "counts": "whole numbers",
}


def facts_of(counts: "ExpertCounts") -> dict[str, Any]:
    """Return what counts say, as JSON has it."""
    return {
        "path": counts.name,
        "format": counts.format,
        "model": counts.model,
        "layers": list(counts.layers),
        "n_expert": counts.n_expert,
        "top_k": counts.top_k,
        "tokens": counts.n_tokens,
        "selections": int(counts.counts.sum()),
        "unused": int((counts.counts == 0).sum()),
        "inferred": counts.inferred,
    }


def lines_of(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Give the lines about counts."""
    layers = facts["layers"]
    yield "counts", f"{facts['path']} ({facts['format']}: how often each expert was used)"
    ends = f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else f"{layers[0]}"
    used = "" if facts["top_k"] is None else f", {facts['top_k']} used per token"
    named = "" if facts["model"] is None else f"{facts['model']}: "
    yield (
        "model",
        f"{named}{counted(len(layers), 'layer')} with experts ({ends}), {facts['n_expert']} experts "
        f"each{used}",
    )
    yield "tokens", "-" if facts["tokens"] is None else str(facts["tokens"])
    yield (
        "used",
        f"{facts['selections']} selections; {counted(facts['unused'], 'expert')} never selected",
    )
    for name, how in facts["inferred"].items():
        yield "inferred", f"{_WORDS[name]}: {how}"
    yield "lacks", _LACKS
    yield from pin_list.lines_of(facts["pinning"])
