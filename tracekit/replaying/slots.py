"""Which lookup each recorded slot belongs to: what joins a trace's rows to a replay's lookups.

In: a trace and its batches. Out: numbers of lookups, or what was recorded of them. A slot is an expert
that a token selected; several tokens of a batch may select one expert, which is looked up once.
"""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches
from tracekit.routing.residency import DROPPED as LEFT_OUT
from tracekit.routing.residency import UNKNOWN
from tracekit.trace import Trace

DROPPED = -1


def lookup_of_slots(trace: Trace, batches: Batches, n_batches: int | None = None) -> np.ndarray:
    """Return the lookup that each slot belongs to, int64 [rows, k]; `DROPPED` if it had none.

    Parameters
    ----------
    trace : Trace
    batches : Batches
        Of that trace.
    n_batches : int, optional
        The first of them whose slots are wanted; all by default.
    """
    row_start = batch_rows(trace)[: None if n_batches is None else n_batches + 1]
    experts = trace.routing(["experts"])["experts"][: row_start[-1]]
    found = np.empty(experts.shape, np.int64)
    _lookup_of_slots(
        experts,
        row_start,
        batches.batch_start,
        batches.keys,
        batches.n_expert,
        np.full(batches.n_expert, DROPPED, np.int64),
        found,
    )
    return found


def states_of_lookups(trace: Trace, batches: Batches, states: np.ndarray) -> np.ndarray:
    """Return what was recorded of each lookup, uint8 [N].

    An engine looks an expert up for the first token of a batch that selects it.

    Parameters
    ----------
    trace : Trace
    batches : Batches
        Of that trace.
    states : uint8 [rows, k]
        From `tracekit.routing.residency.recorded_states`.
    """
    lookups = lookup_of_slots(trace, batches)
    counts = (states != LEFT_OUT) & (lookups != DROPPED)
    found = np.full(len(batches.keys), UNKNOWN, np.uint8)
    # Backwards, so that the first slot has the last word.
    found[lookups[counts][::-1]] = states[counts][::-1]
    return found


def batch_rows(trace: Trace) -> np.ndarray:
    """Return the first routing of each batch, and how many routings there are, int64 [B + 1]."""
    routing = trace.routing(["pass", "layer"])
    begins = (np.diff(routing["pass"]) != 0) | (np.diff(routing["layer"]) != 0)
    n_rows = len(routing["pass"])
    return np.concatenate(([0], np.flatnonzero(begins) + 1, [n_rows]))[: n_rows + 1]


# Each batch notes where the lookups of its experts stand. Where an expert was dropped, no lookup stands.
@kernel
def _lookup_of_slots(
    experts: np.ndarray,
    row_start: np.ndarray,
    batch_start: np.ndarray,
    keys: np.ndarray,
    n_expert: int,
    place: np.ndarray,
    found: np.ndarray,
) -> None:
    for b in range(row_start.size - 1):
        for p in range(batch_start[b], batch_start[b + 1]):
            place[keys[p] % n_expert] = p
        for row in range(row_start[b], row_start[b + 1]):
            for slot in range(experts.shape[1]):
                found[row, slot] = place[experts[row, slot]]
        for p in range(batch_start[b], batch_start[b + 1]):
            place[keys[p] % n_expert] = DROPPED
