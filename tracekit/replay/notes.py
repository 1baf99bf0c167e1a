"""What the figures of a replay say, in plain sentences."""

from collections.abc import Sequence
from typing import Any

from tracekit.policies.base import Batches
from tracekit.replay.budgets import MIB
from tracekit.replay.records import Outcome


def notes(batches: Batches, results: Sequence[Outcome]) -> list[str]:
    """Return the sentences that a reader of `results` needs."""
    records = [result.record for result in results]
    cycle = _mib(batches.token_cycle_bytes)
    under = [r for r in records if r["under_token_cycle"]]
    sentence = f"One token cycle, the bytes a token touches over all layers, is {cycle} MiB"
    if not under:
        sentences = [f"{sentence}; no budget is under it."]
    else:
        sentences = [f"{sentence}; under it: {_sizes(under)}."]
    never = [
        r for r in under if r["policy"] == "lru" and r["lookups_decode"] and not r["hits_decode"]
    ]
    if never:
        sentences.append(
            f"At {_sizes(never)} global LRU never hits while decoding (0.0 %): a token's own "
            "layers push out each expert before the next token can ask for it."
        )
    overran = [r.record for r in results if not r.kept and r.record["over_budget_decode"]]
    for policy in dict.fromkeys(r["policy"] for r in overran):
        over = [r for r in overran if r["policy"] == policy]
        sentences.append(
            f"{policy} held more than its budget while decoding at {_sizes(over)}; "
            "its hit rates there do not compare with those of policies that kept to theirs."
        )
    return sentences


def _sizes(records: Sequence[dict[str, Any]]) -> str:
    sizes = list(dict.fromkeys(_mib(r["cache_bytes"]) for r in records))
    listed = sizes[0] if len(sizes) == 1 else f"{', '.join(sizes[:-1])} and {sizes[-1]}"
    return f"{listed} MiB"


def _mib(n_bytes: int) -> str:
    size = n_bytes / MIB
    return f"{size:.1f}".removesuffix(".0") if size >= 10 else f"{size:.3g}"
