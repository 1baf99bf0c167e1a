"""The limits of a run at each budget: what no choice of kept intervals exceeds.

In go batches and budgets; out come proven totals. `bound` says of which policies they are, and
`intervals` which intervals can be kept.
"""

import math

import numpy as np

from tracekit.policies.base import Batches, Limit
from tracekit.policies.intervals import Room

# Above this many lookups the price bound is left out: it takes seconds there.
MOST_PRICED = 1_000_000


def limits_of(
    batches: Batches, budgets: np.ndarray, prices: int, reads_ahead: int = 0
) -> list[Limit]:
    """Return at each of `budgets` the limits of what reads on demand.

    Parameters
    ----------
    batches : Batches
    budgets : int64 [C]
        In bytes.
    prices : int
        Iterations of the price bound.
    reads_ahead : int
        After a decode batch, so many experts that the next decode batch asks for may be read ahead.
        Bytes are limited as if nothing were.
    """
    of_all, of_decode = _Side(batches, False, prices), _Side(batches, True, prices)
    ahead = [_Side(batches, only, prices, reads_ahead) for only in (False, True) if reads_ahead]
    limits = []
    for budget in budgets.tolist():
        hits, read_bytes = of_all.limits(budget)
        hits_decode, read_bytes_decode = of_decode.limits(budget)
        if ahead:
            hits, hits_decode = (side.limits(budget)[0] for side in ahead)
        limits.append(Limit(budget, hits, hits_decode, read_bytes, read_bytes_decode))
    return limits


class _Side:
    """The lookups of a run that a bound counts: all that count, or those of decoded tokens."""

    def __init__(self, batches: Batches, decode_only: bool, prices: int, reads_ahead: int = 0):
        counted = batches.counted_decode if decode_only else batches.counted
        lookups = np.where(counted, batches.lookups, 0)
        first = np.where(counted, _first_lookups(batches), 0)
        size = batches.expert_bytes[batches.layer]
        room = Room.of(batches, decode_only)
        self.room, self.read_ahead = room, 0
        if reads_ahead:
            self.room, self.read_ahead = room.read_ahead(counted, reads_ahead)
        self.sizes = batches.expert_bytes
        self.prices = prices
        self.asked_bytes = int((lookups * size).sum())
        self.first_bytes = int((first * size).sum())
        self.repeats = int((lookups - first).sum())

    def limits(self, budget: int) -> tuple[int, int]:
        """Return the most hits, and the fewest bytes read."""
        capacity = self.room.capacity(budget)
        kept, kept_bytes = self.room.most_kept(capacity, self.sizes)
        classes = np.unique(self.sizes)
        smallest = int(classes[0])
        if len(classes) > 1:
            _, kept_bytes = self.room.most_kept(capacity, self.sizes, divisible=True)
            equal = np.full(len(self.sizes), smallest)
            kept = min(
                self.room.most_kept(capacity, equal)[0],
                self._by_size(capacity, classes, kept_bytes),
                self._by_prices(capacity),
            )
        read = self.first_bytes + (self.repeats - kept) * smallest
        return kept + self.read_ahead, max(read, self.asked_bytes - kept_bytes)

    def _by_size(self, capacity: np.ndarray, classes: np.ndarray, kept_bytes: int) -> int:
        hits = 0
        for size in classes.tolist():
            alone, _ = self.room.most_kept(capacity, self.sizes, among=self.sizes == size)
            taken = min(alone, kept_bytes // size)
            hits += taken
            kept_bytes -= taken * size
        return hits

    def _by_prices(self, capacity: np.ndarray) -> int:
        if not self.prices or len(self.room.next_use) > MOST_PRICED:
            return self.repeats
        # Rounding may leave the sum of many terms a little below a whole number that it reaches.
        return math.floor(self.room.price_bound(capacity, self.prices) + 1e-6)


def _first_lookups(batches: Batches) -> np.ndarray:
    """Count the keys of each batch that were never looked up before, int64 [B]."""
    is_first = np.ones(len(batches.keys) + 1, np.bool_)
    is_first[batches.next_use] = False
    batch = np.searchsorted(batches.batch_start, np.flatnonzero(is_first[:-1]), side="right") - 1
    return np.bincount(batch, minlength=len(batches))
