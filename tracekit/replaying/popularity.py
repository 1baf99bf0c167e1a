"""Which experts were used most outside the turn that is replayed, for the policies that go by it.

In: a trace and its batches, a trace to learn on, or counts. Out: counts by key. This module knows
nothing of what a policy does with them.
"""

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tracekit.formats import ExpertCounts, as_trace_or_counts
from tracekit.formats.counts.of_trace import counts_of
from tracekit.formats.counts.with_model import with_model
from tracekit.model_files import ModelSizes
from tracekit.policies.base import Batches, Policy, Popularity
from tracekit.replaying.batches import build_batches
from tracekit.trace import Trace, TraceError, UsageError
from tracekit.trace.errors import MissingDataError


def popularity(
    policy: Policy, trace: Trace, batches: Batches, train: Trace | None, counts: ExpertCounts | None
) -> Popularity:
    """Return how often each expert was used by `counts`, else on `train`, else on other turns.

    Parameters
    ----------
    policy : Policy
        Who asks.
    trace : Trace
    batches : Batches
        Those of that trace.
    train : Trace or None
        Of the same model.
    counts : ExpertCounts or None
        From `counts_for`.

    Raises
    ------
    MissingDataError
        There are no counts and no trace to learn on, and no other turn either.
    """
    if counts is not None:
        return Popularity(counts.counts.reshape(1, -1))
    if train is not None:
        learned = build_batches(train, equal_sizes=True)
        return Popularity(_by_turn(learned, np.unique(learned.turn)).sum(axis=0, keepdims=True))
    turns = np.unique(batches.turn)
    if len(turns) < 2:
        raise MissingDataError(
            f"{policy.name} learns on other turns which experts are used most, and {trace.name} has "
            "no other turn; give `tracekit replay` a trace to learn on with --train, or counts of "
            "experts with --pin-from."
        )
    by_turn = _by_turn(batches, turns)
    return Popularity(by_turn.sum(axis=0) - by_turn, turns.astype(np.int32))


def _by_turn(batches: Batches, turns: np.ndarray) -> np.ndarray:
    """Count how many tokens of each of `turns` selected each key, int64 [turns, n_keys]."""
    if batches.rows is None or batches.row_start is None:
        raise ValueError("experts are counted in batches with the rows of their tokens")
    counts = np.zeros((len(turns), batches.n_keys), np.int64)
    layer = np.repeat(batches.layer, np.diff(batches.row_start))
    first = batches.row_start[np.searchsorted(batches.turn, turns)]
    for i, (start, stop) in enumerate(zip(first, [*first[1:], len(layer)], strict=True)):
        keys = layer[start:stop, None] * batches.n_expert + batches.rows[start:stop]
        counts[i] = np.bincount(keys.ravel(), minlength=batches.n_keys)
    return counts


def counts_for(
    given: ExpertCounts | Trace | str | Path | None, trace: Trace, policies: Iterable[Policy]
) -> ExpertCounts | None:
    """Return counts, those of a file or of another trace, layer by layer as `trace` has them.

    Raises
    ------
    UsageError
        No policy goes by counts, or the other trace holds the same routings.
    TraceError
        There is no such file, it is neither counts nor a trace, or it is of another model.
    """
    if given is None:
        return None
    if not any(policy.needs_popularity for policy in policies):
        raise UsageError("--pin-from is for policies that go by counts, such as pin; add one.")
    counts = as_trace_or_counts(given)
    if isinstance(counts, Trace):
        if counts is trace or counts.digest == trace.digest:
            raise UsageError(
                f"{counts.name} holds the routings that are replayed, so what is pinned by it would "
                "flatter; give --pin-from another trace, or leave it out."
            )
        counts = counts_of(counts)
    layers = [{"layer": layer} for layer in trace.moe_layers.tolist()]
    counts = with_model(counts, ModelSizes(trace.facts.model, layers, name=trace.name))
    if missing := sorted(set(trace.moe_layers.tolist()) - set(counts.layers)):
        raise TraceError(
            f"{counts.name} counts no expert of layer {missing[0]}, where {trace.name} has some, so "
            "the counts are of another model; name the right one."
        )
    return counts
