"""A bound on the hits of every demand policy, for experts of any sizes."""

import math

import numpy as np

from tracekit.policies.base import Batches, Limit, Policy, register
from tracekit.policies.intervals import Room
from tracekit.trace.schema import DECODE

# Above this many lookups the price bound is left out: it takes seconds there.
MOST_PRICED = 1_000_000


def bounded(bypass: bool) -> str:
    """Say in words which policies the bound is of: what stands after *every policy that*."""
    if bypass:
        return (
            "keeps to its budget after every load and reads only what is asked for, even if it drops "
            "at once what it has just used"
        )
    return (
        "keeps to its budget, reads only what is asked for, and keeps what it reads until the load "
        "ends"
    )


@register
class Bound(Policy):
    """No demand policy of a class has more hits than this at a budget, or reads fewer bytes.

    *The class.* A demand policy reads an expert only when a batch asks for it, keeps the experts of a
    batch until its load ends, and then evicts until the rest fits the budget. Under this accounting
    it is a set of kept intervals, each from one use of a key to its next: after every batch, the
    kept intervals that span it fit into the budget less the bytes of the batch, or into nothing if
    the batch alone is larger. See `tracekit.policies.intervals`.

    *The class with ``--bypass``.* A policy may also drop at once what a batch has just used. Then the
    kept intervals that span a batch, or begin with it, fit into the budget after it. As long as
    every batch fits into the budget, or the next one is of another layer, this class holds the other.

    *Equal sizes.* At the first batch where too many intervals meet, one must go, and the one that
    ends last meets every later batch that the others meet. So Belady's rule keeps the most. For the
    hits of decoded tokens, intervals that a prompt's batch ends count nothing: Belady's rule with
    such a next use taken as *never*. Both bounds are then what a policy that knows the future
    reaches.

    *Sizes that differ between layers.* Belady's rule is no bound then: a small expert may have to
    go for a later large one. The bound is the least of three:

    - every interval takes no more than the smallest expert does;
    - every size alone has at most the hits that Belady's rule gives it, with the room that the
      batches of all layers leave; and all hits together have at most the bytes that Belady's rule
      keeps if experts can be kept in part, which are best spent on the smallest experts;
    - a price bound, by duality: `Room.price_bound`.

    *Bytes.* At least as many bytes are read as are asked for, less those that Belady's rule keeps if
    experts can be kept in part. Also, each key is read once at its size, and every other miss reads
    the smallest size at least.

    *One layer.* There is no bound of a layer's own figures: at most budgets a layer alone would fit,
    so that its bound would say nothing.

    Every bound is of its own figure: no policy need reach several of them at once.
    """

    name = "bound"
    summary = (
        "proven limits of policies that read on demand and keep each load until it ends (with "
        "--bypass: that may drop it at once)"
    )
    offline = True
    can_bypass = True
    gives_limits = True

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Limit]:
        of_all, of_decode = _Side(batches, False), _Side(batches, True)
        limits = []
        for budget in budgets.tolist():
            hits, read_bytes = of_all.limits(budget)
            hits_decode, read_bytes_decode = of_decode.limits(budget)
            limits.append(Limit(budget, hits, hits_decode, read_bytes, read_bytes_decode))
        return limits


class _Side:
    """The lookups of a run that a bound counts: all, or those of decoded tokens."""

    def __init__(self, batches: Batches, decode_only: bool):
        counted = batches.phase == DECODE if decode_only else np.ones(len(batches), np.bool_)
        lookups = np.where(counted, batches.lookups, 0)
        first = np.where(counted, _first_lookups(batches), 0)
        size = batches.expert_bytes[batches.layer]
        self.room = Room.of(batches, decode_only)
        self.sizes = batches.expert_bytes
        self.asked_bytes = int((lookups * size).sum())
        self.first_bytes = int((first * size).sum())
        self.repeats = int((lookups - first).sum())

    def limits(self, budget: int) -> tuple[int, int]:
        """Return the most hits, and the fewest bytes read."""
        capacity = self.room.capacity(budget)
        hits, kept_bytes = self.room.most_kept(capacity, self.sizes)
        classes = np.unique(self.sizes)
        smallest = int(classes[0])
        if len(classes) > 1:
            _, kept_bytes = self.room.most_kept(capacity, self.sizes, divisible=True)
            equal = np.full(len(self.sizes), smallest)
            hits = min(
                self.room.most_kept(capacity, equal)[0],
                self._by_size(capacity, classes, kept_bytes),
                self._by_prices(capacity),
            )
        read = self.first_bytes + (self.repeats - hits) * smallest
        return hits, max(read, self.asked_bytes - kept_bytes)

    def _by_size(self, capacity: np.ndarray, classes: np.ndarray, kept_bytes: int) -> int:
        hits = 0
        for size in classes.tolist():
            alone, _ = self.room.most_kept(capacity, self.sizes, among=self.sizes == size)
            taken = min(alone, kept_bytes // size)
            hits += taken
            kept_bytes -= taken * size
        return hits

    def _by_prices(self, capacity: np.ndarray) -> int:
        if len(self.room.next_use) > MOST_PRICED:
            return self.repeats
        # Rounding may leave the sum of many terms a little below a whole number that it reaches.
        return math.floor(self.room.price_bound(capacity) + 1e-6)


def _first_lookups(batches: Batches) -> np.ndarray:
    """Count the keys of each batch that were never looked up before, int64 [B]."""
    is_first = np.ones(len(batches.keys) + 1, np.bool_)
    is_first[batches.next_use] = False
    batch = np.searchsorted(batches.batch_start, np.flatnonzero(is_first[:-1]), side="right") - 1
    return np.bincount(batch, minlength=len(batches))
