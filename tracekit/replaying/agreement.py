"""Whether a replay gives what the engine recorded, lookup by lookup and pass by pass.

In: a trace that carries residency, or the engine's own counts, and its budget. Out: what was compared
and how much of it differs, and the likely reason.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from tracekit.policies import POLICIES, Batches, Policy, load_policy
from tracekit.replaying.batches import build_batches
from tracekit.replaying.comparison import (
    COUNTS,
    Compared,
    Recorded,
    compare,
    is_plain,
    recorded_of,
    run,
)
from tracekit.replaying.reasons import likely_reason
from tracekit.replaying.slots import batch_rows
from tracekit.routing.residency import why_unverified
from tracekit.trace import Trace
from tracekit.trace.agreement import Agreement


def verify(trace: Trace) -> Agreement | None:
    """Compare what the engine of `trace` recorded with a replay of its policy at its budget.

    Parameters
    ----------
    trace : Trace

    Returns
    -------
    Agreement or None
        None if there is nothing to compare: no budget, no size of an expert, neither residency nor
        counts. If they differ, it names the likely reason: other policies, other budgets and other
        passes are tried, of a long trace at its beginning.
    """
    if why_unverified(trace) is not None:
        return None
    batches = build_batches(trace)
    recorded = recorded_of(trace, batches)
    policy = replayed_policy(trace)
    budget = trace.budget_bytes or 0
    (cell,) = run(policy, batches, [budget])
    found = compare(recorded, batches, cell, batches.pass_id)
    agreement = Agreement(
        policy=policy.name,
        budget_bytes=budget,
        n_lookups=len(recorded.lookups),
        n_mismatched=len(found.lookups),
        n_passes=len(recorded.passes),
        n_passes_mismatched=len(found.passes),
        hits_recorded=recorded.hits,
        hits_replayed=None if recorded.hits is None else found.hits,
    )
    if agreement.holds:
        return agreement
    return replace(
        agreement,
        first_mismatch=_first_mismatch(trace, batches, recorded, found),
        likely_reason=likely_reason(trace, policy),
    )


def verified(trace: Trace, anew: bool = False) -> Trace:
    """Return `trace`, verified if nobody has done so: its facts and its warnings say what came out.

    What is kept in the trace's own ``trace.json`` is taken from there, and nothing is compared,
    unless it is to be done `anew`.
    """
    if anew or trace.facts.current_agreement is None:
        agreement = verify(trace)
        if agreement is not None:
            adopt(trace, agreement)
    return trace


def adopt(trace: Trace, agreement: Agreement) -> None:
    """Put `agreement` into the facts of `trace`, and what it says into the warnings."""
    old = trace.facts.agreement
    stale = None if old is None else old.sentence(trace.name)
    trace.warnings[:] = [warning for warning in trace.warnings if warning != stale]
    if not agreement.holds:
        trace.warnings.append(agreement.sentence(trace.name))
    trace.facts = replace(trace.facts, agreement=agreement)


def replayed_policy(trace: Trace) -> Policy:
    """Return the policy that the trace says its engine had; else LRU, as engines mostly have it."""
    engine = trace.facts.engine
    name = engine.cache_policy if engine is not None else None
    is_known = name is not None and name in POLICIES and is_plain(POLICIES.find(name))
    return load_policy(name if name is not None and is_known else "lru")


def _first_mismatch(
    trace: Trace, batches: Batches, recorded: Recorded, found: Compared
) -> dict[str, Any]:
    if not len(found.lookups):
        at = int(found.passes[0])
        number = int(recorded.passes[at])
        batch = int(np.searchsorted(batches.pass_id, number))
        turn = int(batches.turn[batch]) if batch < len(batches) else None
        known = [name for name in COUNTS if recorded.counts[name][at] >= 0]
        return {
            "turn": turn,
            "pass": number,
            "recorded": {name: int(recorded.counts[name][at]) for name in known},
            "replayed": {name: int(found.counts[name][at]) for name in known},
        }
    first = int(found.lookups[0])
    lookup = int(recorded.lookups[first])
    expert = int(batches.keys[lookup]) % batches.n_expert
    batch = int(np.searchsorted(batches.batch_start, lookup, side="right")) - 1
    start, stop = batch_rows(trace)[batch : batch + 2].tolist()
    routing = trace.routing(["turn", "pass", "step", "layer", "experts"])
    row = start + int((routing["experts"][start:stop] == expert).any(axis=1).argmax())
    was_hit = bool(recorded.resident[first])
    return {
        **{name: int(routing[name][row]) for name in ("turn", "pass", "step", "layer")},
        "expert": expert,
        "recorded": "hit" if was_hit else "miss",
        "replayed": "miss" if was_hit else "hit",
    }
