"""What a policy answers: at each budget a run or proven limits, and of itself what state it has.

Nothing here knows a policy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, eq=False)
class Cell:
    """What one policy did at one budget.

    Attributes
    ----------
    budget_bytes : int
    hits : int32 [B]
        Hits of each batch.
    resident_bytes : int64 [B]
        Resident size after each batch's eviction.
    lookups : int32 [B] or None
        Lookups of each batch; None if they are ``Batches.lookups``: the policy is not lossy.
    read_bytes : int64 [B] or None
        Bytes read for each batch; None if ``misses × expert_bytes``: the policy reads nothing ahead.
    prefetched : int32 [B] or None
        Hits of each batch that are due to a read ahead; None if the policy reads nothing ahead.
    hit : bool [N] or None
        Whether each lookup hit, in the order of ``Batches.keys``; only when `simulate` was asked.
    counters : mapping
        The policy's own totals, by the names in ``Policy.counters``; None: there is no figure.
    """

    budget_bytes: int
    hits: np.ndarray
    resident_bytes: np.ndarray
    lookups: np.ndarray | None = None
    read_bytes: np.ndarray | None = None
    prefetched: np.ndarray | None = None
    hit: np.ndarray | None = None
    counters: Mapping[str, int | float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """Proven limits at one budget: totals, without a run behind them.

    Attributes
    ----------
    budget_bytes : int
    hits, hits_decode : int
        No policy of the class that is bounded has more hits, of all lookups and of those of decode
        batches.
    read_bytes, read_bytes_decode : int
        No such policy reads fewer bytes.
    """

    budget_bytes: int
    hits: int
    hits_decode: int
    read_bytes: int
    read_bytes_decode: int


@dataclass(frozen=True)
class StateArray:
    """An array that an engine keeps to run a policy.

    Attributes
    ----------
    name : str
    shape : str
        In words: of what there is one number each.
    size_bytes : int
    means : str
        What it holds.
    """

    name: str
    shape: str
    size_bytes: int
    means: str
