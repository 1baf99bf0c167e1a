"""Which lookup each recorded slot belongs to: what joins a trace's rows to a replay's lookups.

In: a trace and its batches. Out: numbers of lookups, and numbers of slots. A slot is an expert that a
token selected; several tokens of a batch may select one expert, which is looked up once.
"""

import numpy as np

from tracekit.policies.base import Batches
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


def first_slots(lookups: np.ndarray) -> np.ndarray:
    """Return the first slot of each lookup, int64 [N]: the one that the engine looked it up for.

    Parameters
    ----------
    lookups : int64 [rows, k]
        From `lookup_of_slots`.

    Returns
    -------
    int64 [N]
        Numbers in ``lookups.ravel()``.
    """
    flat = lookups.ravel()
    slots = np.flatnonzero(flat != DROPPED)
    return slots[np.unique(flat[slots], return_index=True)[1]]
