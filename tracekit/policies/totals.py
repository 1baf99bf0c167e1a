"""What a policy did at a budget, in totals: for runs at many budgets that are made in one pass.

In go hits by the kind and the layer of a batch; out come totals. Nothing here knows a policy.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.policies.batches import Batches


@dataclass(frozen=True, eq=False)
class Totals:
    """What a policy that looks up what is asked for, and reads what missed, did at one budget.

    Attributes
    ----------
    budget_bytes : int
    hits, hits_decode : int64 [L]
        Hits of each layer, of the batches that figures count and of those for decoded tokens.
    peak_bytes : int
        The most that was resident after a batch that counts.
    peak_bytes_decode : int or None
        The same of decode batches that count, after the first decoded token of their turn; None:
        there are none.
    """

    budget_bytes: int
    hits: np.ndarray
    hits_decode: np.ndarray
    peak_bytes: int
    peak_bytes_decode: int | None


def totals_of(batches: Batches, budgets: np.ndarray, hits: np.ndarray) -> list[Totals]:
    """Return the totals at each of `budgets`, of a policy that evicts no more than it must.

    Whatever it evicts, the cache is full from the first eviction on, and holds all that was seen
    before that; a batch that must stay until its load ends may alone be larger.

    Parameters
    ----------
    batches : Batches
        Of experts of one size.
    budgets : int64 [C]
        In bytes.
    hits : int64 [C, 3, L]
        By the kind of the batch (`Batches.kind`) and its layer.
    """
    size = int(batches.expert_bytes[0])
    seen = np.cumsum(batches.first_lookups)  # distinct keys until each batch
    in_hand = np.zeros_like(seen) if batches.bypass else batches.lookups

    def peak(which: np.ndarray, budget: int) -> int | None:
        places = np.flatnonzero(which)
        if not len(places):
            return None
        return size * max(min(int(seen[places[-1]]), budget // size), int(in_hand[places].max()))

    decode = batches.counted_decode & batches.after_first_decode
    return [
        Totals(
            budget,
            hits=of_kind[1:].sum(axis=0),
            hits_decode=of_kind[2],
            peak_bytes=peak(batches.counted, budget) or 0,
            peak_bytes_decode=peak(decode, budget),
        )
        for budget, of_kind in zip(budgets.tolist(), hits, strict=True)
    ]
