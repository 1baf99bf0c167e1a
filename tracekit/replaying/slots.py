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


def lookup_of_slots(trace: Trace, batches: Batches) -> np.ndarray:
    """Return the lookup that each slot belongs to, int64 [rows, k]; `DROPPED` if it had none.

    Parameters
    ----------
    trace : Trace
    batches : Batches
        Of that trace.
    """
    routing = trace.routing(["pass", "layer", "experts"])
    layer = np.searchsorted(trace.moe_layers, routing["layer"])
    begins = np.ones(len(layer), np.int64)
    begins[1:] = (np.diff(routing["pass"]) != 0) | (np.diff(layer) != 0)
    batch = np.cumsum(begins) - 1
    key = layer[:, None] * batches.n_expert + routing["experts"]
    wanted = batch[:, None] * batches.n_keys + key
    batch_of_lookup = np.repeat(np.arange(len(batches)), batches.lookups)
    known = batch_of_lookup * batches.n_keys + batches.keys
    order = np.argsort(known)
    at = np.minimum(np.searchsorted(known, wanted, sorter=order), len(known) - 1)
    found = order[at]
    return np.where(known[found] == wanted, found, DROPPED)


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
    return _first_states(
        trace.routing(["experts"])["experts"],
        states,
        batch_rows(trace),
        batches.batch_start,
        batches.keys,
        batches.n_expert,
        np.full(len(batches.keys), UNKNOWN, np.uint8),
        np.zeros(batches.n_expert, np.int64),
    )


def batch_rows(trace: Trace) -> np.ndarray:
    """Return the first routing of each batch, and how many routings there are, int64 [B + 1]."""
    routing = trace.routing(["pass", "layer"])
    begins = (np.diff(routing["pass"]) != 0) | (np.diff(routing["layer"]) != 0)
    n_rows = len(routing["pass"])
    return np.concatenate(([0], np.flatnonzero(begins) + 1, [n_rows]))[: n_rows + 1]


# Each batch notes where its lookups stand; each of them takes the state of its first slot. An expert
# that was dropped was not looked up, and has no place.
@kernel
def _first_states(
    experts: np.ndarray,
    states: np.ndarray,
    row_start: np.ndarray,
    batch_start: np.ndarray,
    keys: np.ndarray,
    n_expert: int,
    found: np.ndarray,
    place: np.ndarray,
) -> np.ndarray:
    for b in range(batch_start.size - 1):
        for p in range(batch_start[b], batch_start[b + 1]):
            place[keys[p] % n_expert] = p
        # Backwards, so that the first slot has the last word.
        for row in range(row_start[b + 1] - 1, row_start[b] - 1, -1):
            for slot in range(experts.shape[1] - 1, -1, -1):
                if states[row, slot] != LEFT_OUT:
                    found[place[experts[row, slot]]] = states[row, slot]
    return found
