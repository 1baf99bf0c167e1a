"""The limits of a run at each budget: what no choice of kept intervals exceeds.

In go batches and budgets; out come proven totals. `bound` says of which policies they are, and
`intervals` which intervals can be kept.
"""

import math

import numpy as np

from tracekit.policies.base import Batches, Limit
from tracekit.policies.batches import joined
from tracekit.policies.chain import kept_at
from tracekit.policies.fed import Run
from tracekit.policies.intervals import Kept, Room
from tracekit.policies.model import Model

# Above this many lookups the price bound is left out: it takes seconds there.
MOST_PRICED = 1_000_000


def limits_of_equal_sizes(batches: Batches, budgets: np.ndarray) -> list[Limit]:
    """Return the limits of a whole run, of experts of one size, at each of `budgets`: one pass for all.

    Belady's rule keeps the most intervals, and so the most bytes.

    Parameters
    ----------
    batches : Batches
    budgets : int64 [C]
        In bytes.
    """
    size = int(batches.expert_bytes[0])
    found = []
    for decode_only in (False, True):
        counted = batches.counted_decode if decode_only else batches.counted
        next_use = Room.of(batches, decode_only).next_use
        kept = kept_at(batches, next_use, budgets).sum(axis=(1, 2))
        found.append((kept, size * (batches.lookups[counted].sum() - kept)))
    (hits, read), (hits_decode, read_decode) = found
    columns = (budgets, hits, hits_decode, read, read_decode)
    return [
        Limit(*of_budget) for of_budget in zip(*(each.tolist() for each in columns), strict=True)
    ]


def limits_in_shares(batches: Batches, budgets: np.ndarray) -> list[Limit]:
    """Return the limits of a whole run whose layers each keep to their share, at each of `budgets`.

    The batches are taken layer after layer. Then no interval of a layer meets one of another, and all
    intervals that meet have one size.

    Parameters
    ----------
    batches : Batches
    budgets : int64 [C]
        In bytes.
    """
    by_layer = batches.only(np.argsort(batches.layer, kind="stable"))
    size = by_layer.expert_bytes[by_layer.layer]
    rooms = [Room.of(by_layer, decode_only) for decode_only in (False, True)]
    asked_bytes = [
        int((by_layer.lookups * size)[counted].sum())
        for counted in (by_layer.counted, by_layer.counted_decode)
    ]
    limits = []
    for budget in budgets.tolist():
        share = batches.shares(budget)[by_layer.layer]
        kept = [room.most_kept(room.capacity(share), by_layer.expert_bytes) for room in rooms]
        read_bytes = [
            asked - of_kept for asked, (_, of_kept) in zip(asked_bytes, kept, strict=True)
        ]
        limits.append(Limit(budget, *(intervals for intervals, _ in kept), *read_bytes))
    return limits


class LimitsRun(Run):
    """The limits of what reads on demand, at each of `budgets`.

    Parameters
    ----------
    model : Model
    budgets : int64 [C]
        In bytes.
    prices : int
        Iterations of the price bound.
    reads_ahead : int
        After a decode batch, so many experts that the next decode batch asks for may be read ahead.
        Bytes are limited as if nothing were. The run then is one piece.
    """

    def __init__(self, model: Model, budgets: np.ndarray, prices: int, reads_ahead: int = 0):
        self._budgets = budgets.tolist()
        self._seen = np.zeros(model.n_keys, np.bool_)
        self._sides = [_Side(model, self._budgets, only, prices) for only in (False, True)]
        self._ahead = [
            _Side(model, self._budgets, only, prices, reads_ahead)
            for only in (False, True)
            if reads_ahead
        ]

    def feed(self, batches: Batches, per_lookup: bool = False) -> list[Limit]:
        first = self._first_lookups(batches)
        for side in (*self._sides, *self._ahead):
            side.feed(batches, first)
        limits = []
        for c, budget in enumerate(self._budgets):
            (hits, read_bytes), (hits_decode, read_bytes_decode) = (
                side.limits(c) for side in self._sides
            )
            if self._ahead:
                hits, hits_decode = (side.limits(c)[0] for side in self._ahead)
            limits.append(Limit(budget, hits, hits_decode, read_bytes, read_bytes_decode))
        return limits

    def _first_lookups(self, batches: Batches) -> np.ndarray:
        """Count the keys of each batch that were never looked up before, int64 [B]."""
        here = batches.first_use < len(batches.keys)
        first = batches.first_use[here & ~self._seen]
        self._seen |= here
        batch = np.searchsorted(batches.batch_start, first, side="right") - 1
        return np.bincount(batch, minlength=len(batches))


class _Side:
    """The lookups of a run that a bound counts: all that count, or those of decoded tokens."""

    def __init__(
        self,
        model: Model,
        budgets: list[int],
        decode_only: bool,
        prices: int,
        reads_ahead: int = 0,
    ):
        self._decode_only = decode_only
        self._reads_ahead = reads_ahead
        self._read_ahead = 0  # lookups that are best read ahead
        self._asked_bytes = self._first_bytes = self._repeats = 0
        classes = np.unique(model.expert_bytes)
        self._smallest = int(classes[0])
        prices = prices if len(classes) > 1 else 0
        # The pieces of a run that is short enough for the price bound.
        self._short_run: list[Batches] | None = [] if prices else None
        self._prices = prices
        self._at = [_Kept(model, classes, budget) for budget in budgets]

    def feed(self, batches: Batches, first: np.ndarray) -> None:
        """Go on with the next piece, of whose batches `first` int [B] keys were never looked up before."""
        counted = batches.counted_decode if self._decode_only else batches.counted
        lookups = np.where(counted, batches.lookups, 0)
        first = np.where(counted, first, 0)
        size = batches.expert_bytes[batches.layer]
        self._asked_bytes += int((lookups * size).sum())
        self._first_bytes += int((first * size).sum())
        self._repeats += int((lookups - first).sum())
        room, n_read = self._room_of(batches)
        self._read_ahead += n_read
        for at in self._at:
            at.feed(room)
        if self._short_run is not None:
            self._short_run.append(batches)
            if sum(len(piece.keys) for piece in self._short_run) > MOST_PRICED:
                self._short_run = None
            else:
                self._priced, _ = self._room_of(joined(self._short_run))

    def _room_of(self, batches: Batches) -> tuple[Room, int]:
        room = Room.of(batches, self._decode_only)
        if not self._reads_ahead:
            return room, 0
        counted = batches.counted_decode if self._decode_only else batches.counted
        return room.read_ahead(counted, self._reads_ahead)

    def limits(self, c: int) -> tuple[int, int]:
        """Return the most hits, and the fewest bytes read, at budget `c`."""
        at = self._at[c]
        kept, kept_bytes = at.most_kept()
        if self._short_run is not None:
            room = self._priced
            bound = room.price_bound(room.capacity(at.budget), self._prices)
            # Rounding may leave the sum of many terms a little below a whole number that it reaches.
            kept = min(kept, math.floor(bound + 1e-6))
        kept = min(kept, self._repeats)
        read = self._first_bytes + (self._repeats - kept) * self._smallest
        return kept + self._read_ahead, max(read, self._asked_bytes - kept_bytes)


class _Kept:
    """What Belady's rule keeps at one budget, as the bounds for unequal sizes ask for it."""

    def __init__(self, model: Model, classes: np.ndarray, budget: int):
        sizes, n_keys = model.expert_bytes, model.n_keys
        self.budget = budget
        self._true = Kept(n_keys, sizes)
        self._bytes = Kept(n_keys, sizes, divisible=True)
        self._equal = Kept(n_keys, np.full(len(sizes), classes[0]))
        self.by_size = {size: Kept(n_keys, sizes, among=sizes == size) for size in classes.tolist()}

    def feed(self, room: Room) -> None:
        capacity = room.capacity(self.budget)
        self._true.feed(room, capacity)
        if len(self.by_size) > 1:
            for kept in (self._bytes, self._equal, *self.by_size.values()):
                kept.feed(room, capacity)

    def most_kept(self) -> tuple[int, int]:
        """Return numbers that the kept intervals and their bytes cannot exceed."""
        if len(self.by_size) == 1:
            return self._true.intervals, self._true.bytes
        left = self._bytes.bytes
        hits = 0
        for size, alone in self.by_size.items():
            taken = min(alone.intervals, left // size)
            hits += taken
            left -= taken * size
        return min(self._equal.intervals, hits), self._bytes.bytes
