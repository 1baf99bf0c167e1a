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


def totals_of(
    batches: Batches, budgets: np.ndarray, hits: np.ndarray, peaks: np.ndarray
) -> list[Totals]:
    """Return the totals at each of `budgets`, of a policy that evicts no more than it must.

    Until more than the budget was looked up, the cache holds all that was seen; and a batch that must
    stay until its load ends may alone be larger than the budget.

    Parameters
    ----------
    batches : Batches
    budgets : int64 [C]
        In bytes.
    hits : int64 [C, 3, L]
        By the kind of the batch (`Batches.kind`) and its layer.
    peaks : int64 [C, 2]
        The most bytes within the budget after a batch of each kind of `Batches.peak_kind` from 1 on,
        of those batches until which more than the budget was looked up.
    """
    size = batches.expert_bytes[batches.layer]
    seen = np.cumsum(batches.first_lookups * size)  # bytes of distinct keys until each batch
    in_hand = np.zeros_like(seen) if batches.bypass else batches.lookups * size

    def peaks_of(which: np.ndarray, evicting: np.ndarray) -> list[int] | list[None]:
        if not which.any():
            return [None] * len(budgets)
        held = np.append(0, seen[which])
        whole = held[np.searchsorted(held, budgets, side="right") - 1]
        evicting = np.where(held[-1] > budgets, evicting, 0)
        found: list[int] = np.maximum(np.maximum(whole, evicting), in_hand[which].max()).tolist()
        return found

    of_all = peaks_of(batches.peak_kind > 0, peaks.max(axis=1))
    of_decode = peaks_of(batches.peak_kind > 1, peaks[:, 1])
    return [
        Totals(
            budget,
            hits=of_kind[1:].sum(axis=0),
            hits_decode=of_kind[2],
            peak_bytes=peak or 0,
            peak_bytes_decode=peak_decode,
        )
        for budget, of_kind, peak, peak_decode in zip(
            budgets.tolist(), hits, of_all, of_decode, strict=True
        )
    ]


def totals_of_equal_sizes(batches: Batches, budgets: np.ndarray, hits: np.ndarray) -> list[Totals]:
    """Return the same, of experts of one size: from the first eviction on, the cache is full."""
    size = int(batches.expert_bytes[0])
    full = budgets // size * size
    return totals_of(batches, budgets, hits, np.stack([full, full], axis=1))
