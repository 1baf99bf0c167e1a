"""What the figures of a replay say, in plain sentences."""

from collections.abc import Sequence

import numpy as np

from tracekit.figures import MIB, budget_mib, joined, percent
from tracekit.policies.model import Model
from tracekit.replaying.loads import Loads
from tracekit.replaying.memory import bytes_in_memory
from tracekit.replaying.rows import Row
from tracekit.trace import Trace

EQUAL = (
    "The trace does not say how many bytes an expert has: all are taken for equal, and nothing is said "
    "in MiB. `tracekit import` takes the sizes, with --model PATH or --expert-mib M."
)


def notes(model: Model, rows: Sequence[Row], loads: Loads) -> list[str]:
    """Return the sentences that a reader of `rows` needs; `loads` are the largest of the run."""
    bypass = [_scratch(model, loads)] if model.bypass else []
    under = [row for row in rows if row.under_token_cycle]
    cycle = f"{_mib(model.token_cycle_bytes)} MiB"
    if not model.sized:
        cycle = f"{_percent(model.token_cycle_bytes / model.bank_bytes)} of all experts"
    sentence = f"One token cycle, the bytes a token touches over all layers, is {cycle}"
    if not under:
        sentences = [f"{sentence}; no budget is under it."]
    else:
        sentences = [f"{sentence}; under it: {_sizes(under)}."]
    never = [
        row for row in under if row.policy == "lru" and row.lookups_decode and not row.hits_decode
    ]
    if never:
        sentences.append(
            f"At {_sizes(never)} global LRU never hits while decoding (0.0 %): a token's own "
            "layers push out each expert before the next token can ask for it."
        )
    overran = [row for row in rows if not row.kept_to_budget and row.over_budget_decode]
    for policy in dict.fromkeys(row.policy for row in overran):
        over = [row for row in overran if row.policy == policy]
        sentences.append(
            f"{policy} held more than its budget while decoding at {_sizes(over)}; "
            "its hit rates there do not compare with those of policies that kept to theirs."
        )
    return [*([] if model.sized else [EQUAL]), *bypass, *sentences]


def _scratch(model: Model, loads: Loads) -> str:
    """Say how large the scratch buffer is that is not charged to the cache."""
    parts = [
        f"{_mib(most)} MiB {when}"
        for most, when in (
            (loads.decode_bytes, "while decoding"),
            (loads.prefill_bytes, "in prompts"),
        )
        if most
    ]
    sentence = (
        "The engine may drop at once what it has just used. Its scratch buffer is not charged to the "
        "cache"
    )
    if not model.sized or not parts:
        return f"{sentence}."
    return f"{sentence}; the largest load that it may have to hold is {joined(parts)}."


def held_in_memory(trace: Trace, policies: Sequence[str]) -> list[str]:
    """Say that `policies` hold a trace in memory that others replay from disk."""
    if not policies:
        return []
    hold = "holds" if len(policies) == 1 else "hold"
    return [
        f"{joined(policies)} {hold} the whole trace in memory, which takes about "
        f"{_mib(bytes_in_memory(trace))} MiB; what else is replayed comes from disk."
    ]


def unranked(trace: Trace) -> list[str]:
    """Say that the order of a routing's experts is not that of their weights, where it is not."""
    if trace.facts.slot_order == "ranked":
        return []
    return [
        "Which expert of a routing is the heaviest is not known: where their order matters (which of "
        "a token's experts was touched last, which guess is read ahead first), that of the slots is "
        "taken."
    ]


def other_cache_than_recorded(
    trace: Trace, policies: Sequence[str], budgets: np.ndarray
) -> list[str]:
    """Say that lookups must differ if another cache is replayed than the recording had."""
    engine = trace.facts.engine
    if engine is None or engine.cache_bytes is None:
        return []
    recorded = engine.cache_policy or policies[0]
    if all(name == recorded for name in policies) and (budgets == engine.cache_bytes).all():
        return []
    return [
        f"The recording had {engine.cache_policy or 'a cache'} of "
        f"{budget_mib(engine.cache_bytes)} MiB; of another policy or size lookups differ."
    ]


def _sizes(rows: Sequence[Row]) -> str:
    if rows[0].cache_bytes is None:
        shares = dict.fromkeys(_percent(row.cache_fraction) for row in rows)
        return f"{joined(list(shares))} of all experts"
    return f"{joined(list(dict.fromkeys(_mib(row.budget) for row in rows)))} MiB"


def _percent(share: float) -> str:
    return f"{percent(share)} %"


def _mib(n_bytes: int) -> str:
    size = n_bytes / MIB
    return f"{size:.1f}".removesuffix(".0") if size >= 10 else f"{size:.3g}"
