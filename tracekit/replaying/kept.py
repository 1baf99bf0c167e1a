"""Whether a run kept to its budget, so that it compares with others and with a bound.

The batch in hand stays until its load ends: it alone may be larger than the budget. With
``Batches.bypass`` it need not stay.
"""

import numpy as np

from tracekit.policies.base import Batches, Cell


def kept_to_budget(batches: Batches, cell: Cell) -> np.ndarray:
    """Say of each batch whether no more was resident after it than the budget allows, bool [B]."""
    return np.asarray(cell.resident_bytes <= np.maximum(_in_hand(batches), cell.budget_bytes))


def most_by_shares(batches: Batches, budget: int) -> np.ndarray:
    """Return the most that the layer of each batch may hold after it, by its share, int64 [B]."""
    return np.asarray(np.maximum(_in_hand(batches), batches.shares(budget)[batches.layer]))


def _in_hand(batches: Batches) -> np.ndarray:
    """Return the bytes of each batch that cannot go after it, int64 [B]."""
    own = batches.lookups * batches.expert_bytes[batches.layer]
    return np.zeros_like(own) if batches.bypass else np.asarray(own)
