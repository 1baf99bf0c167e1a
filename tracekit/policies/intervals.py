"""The most lookups that can hit, as a choice among intervals between the uses of a key.

A lookup of a key that was looked up before closes an *interval*: from the batch of the one lookup to
the batch of the other. The lookup hits if the key stays resident all that time. What a policy that
reads only on demand leaves resident is therefore a set of kept intervals, and what limits it is the
room after each batch (`Room`). The functions here find how many intervals can be kept, or how
many bytes; `bound` puts them together.

They know nothing of policies. Source of the greedy rule: L. A. Belady (1966); of the argument by
intervals: the interval scheduling of M. C. Carlisle and E. L. Lloyd (1995).
"""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches
from tracekit.policies.positions import add, discard, holds, largest, members, set_of
from tracekit.trace.schema import DECODE


@dataclass(frozen=True, eq=False)
class Room:
    """Which intervals there are, and how much room is left for them after each batch.

    Attributes
    ----------
    batches : Batches
        With ``batches.bypass`` the engine may drop at once what it has just used. An interval then
        takes room from its first batch on, and the batch in hand takes none. Otherwise the batch
        in hand stays until its load ends and takes its room, and an interval takes room between
        its two batches.
    next_use : int32 [N]
        Position of each key's next lookup where that closes an interval that counts;
        ``batches.n_positions`` elsewhere.
    """

    batches: Batches
    next_use: np.ndarray

    @classmethod
    def of(cls, batches: Batches, decode_only: bool) -> "Room":
        """Return the room of a run, for the intervals that end in a batch that counts.

        With `decode_only`, in one that figures of decoded tokens count.
        """
        next_use = batches.next_use
        ends = batches.counted_decode if decode_only else batches.counted
        counts = np.repeat(ends, batches.lookups)
        if batches.later is not None:
            later = batches.later
            of_later = np.zeros(batches.n_keys, np.bool_)
            used = later.rank >= 0
            of_later[later.rank[used]] = (later.counts_decode if decode_only else later.counts)[
                used
            ]
            counts = np.concatenate([counts, of_later])
        if not counts.all():
            is_kept = np.append(counts, True)[next_use]
            if not is_kept.all():  # else it stays the same array: passes of it are shared
                next_use = np.where(is_kept, next_use, batches.n_positions)
        return cls(batches, next_use.astype(np.int32, copy=False))

    def read_ahead(self, counted: np.ndarray, most: int) -> tuple["Room", int]:
        """Leave out the lookups that are best read ahead, and say how many they are.

        After a decode batch, `most` of the next batch's experts may be read, if that is a decode
        batch. They hit without an interval. All intervals that end in a batch end together, so the
        one that begins first takes room wherever another of them does: the best to be read are
        those that were looked up longest ago, or never.

        Parameters
        ----------
        counted : bool [B]
            Batches that count.
        most : int
            Experts that may be read ahead of a batch.
        """
        decode = self.batches.phase == DECODE
        can = decode & counted & np.append(False, decode[:-1])
        n_read = np.where(can, np.minimum(self.batches.lookups, most), 0)
        next_use = _without_oldest(self.batches.batch_start, self.next_use, n_read)
        return Room(self.batches, next_use), int(n_read.sum())

    def capacity(self, budget: int | np.ndarray) -> np.ndarray:
        """Return the bytes that intervals may take after each batch, int64 [B].

        Parameters
        ----------
        budget : int or int64 [B]
            Bytes of the cache, or of the share that each batch has of it.
        """
        if self.batches.bypass:
            return np.full(len(self.batches), budget, np.int64)
        own = self.batches.lookups * self.batches.expert_bytes[self.batches.layer]
        room: np.ndarray = np.maximum(budget - own, 0)
        return room

    def most_kept(
        self,
        capacity: np.ndarray,
        sizes: np.ndarray,
        among: np.ndarray | None = None,
        divisible: bool = False,
    ) -> tuple[int, int]:
        """Return how many intervals `Kept` keeps of a whole run, and their bytes."""
        kept = Kept(self.batches.n_keys, sizes, among, divisible)
        kept.feed(self, capacity)
        return kept.intervals, kept.bytes

    def spans(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return of each interval the first batch after which it takes room, the batch after the last, and its layer.

        Returns
        -------
        first, stop : int64 [I]
            It takes room after batches `first` to `stop` − 1; none if they are equal.
        layer : int64 [I]
        """
        p = np.flatnonzero(self.next_use < len(self.next_use))
        batch = np.repeat(np.arange(len(self.batches)), self.batches.lookups)
        start, end = batch[p], batch[self.next_use[p]]
        return start + (not self.batches.bypass), end, self.batches.layer[start].astype(np.int64)

    def price_bound(self, capacity: np.ndarray, iterations: int) -> float:
        """Return a number that the kept intervals cannot exceed, whatever their sizes.

        Let room after batch t cost λ_t ≥ 0 a byte. A kept interval is worth 1 and pays for its
        room; all rents together are at most Σ λ_t capacity_t. So at most
        Σ λ_t capacity_t + Σ max(0, 1 − rent of an interval) intervals are kept (weak duality):
        true of any prices. `iterations` subgradient steps with momentum make the number small, of
        Polyak's step length towards what Belady's rule keeps.
        """
        first, stop, layer = self.spans()
        unit = float(self.batches.expert_bytes.min(initial=1 << 62))
        sizes = self.batches.expert_bytes / unit
        feasible, _ = self.most_kept(capacity, self.batches.expert_bytes)
        return float(
            _price_bound(first, stop, sizes[layer], capacity / unit, float(feasible), iterations)
        )


class Kept:
    """Intervals kept by Belady's rule: where room is short, the one that ends last goes.

    At equal `sizes` no choice keeps more intervals. With `divisible` an interval may be kept in part,
    and no choice keeps more bytes. A run may come in pieces.

    Parameters
    ----------
    n_keys : int
    sizes : int64 [L]
        Bytes of an interval of each layer.
    among : bool [L], optional
        The layers whose intervals count; all by default.
    divisible : bool
    """

    def __init__(
        self,
        n_keys: int,
        sizes: np.ndarray,
        among: np.ndarray | None = None,
        divisible: bool = False,
    ):
        self._sizes = np.asarray(sizes, np.int64)
        self._among = np.ones(len(sizes), np.bool_) if among is None else among
        self._divisible = divisible
        self._waits = np.empty(0, np.int64)  # keys of the intervals that are open after a piece
        self._gone = np.zeros(n_keys if divisible else 0, np.int64)  # bytes not kept of each
        self._totals = np.zeros(3, np.int64)  # bytes in use; intervals kept, and their bytes

    @property
    def intervals(self) -> int:
        """Intervals kept so far, those kept in part included."""
        return int(self._totals[1])

    @property
    def bytes(self) -> int:
        """Their bytes."""
        return int(self._totals[2])

    def feed(self, room: Room, capacity: np.ndarray) -> None:
        """Go on with the next piece.

        Parameters
        ----------
        room : Room
            Of the piece.
        capacity : int64 [B]
            Bytes that intervals may take after each batch of it.
        """
        batches = room.batches
        n = batches.n_positions
        closes = batches.first_use[self._waits]
        gone = np.zeros(n if self._divisible else 0, np.int64)
        if self._divisible:
            gone[closes] = self._gone[self._waits]
        waiting = set_of(closes, n)
        _most_kept(
            batches.batch_start,
            batches.layer,
            room.next_use,
            batches.layer_of_position,
            np.asarray(capacity, np.int64),
            self._sizes,
            self._among,
            self._divisible,
            batches.bypass,
            *waiting,
            gone,
            self._totals,
        )
        self._waits = waiting_keys(batches, waiting[0])
        if self._divisible and batches.later is not None:
            self._gone[self._waits] = gone[len(batches.keys) + batches.later.rank[self._waits]]


def waiting_keys(batches: Batches, bits: np.ndarray) -> np.ndarray:
    """Return the keys whose first use after `batches` is in the set `bits` of positions, int64."""
    if batches.later is None:
        return np.empty(0, np.int64)
    by_rank = np.argsort(batches.later.rank)[np.count_nonzero(batches.later.rank < 0) :]
    return np.asarray(by_rank[members(bits, len(batches.keys), len(batches.keys) + len(by_rank))])


# Waiting intervals are a set of numbers, the positions of the lookups that close them, as in
# `belady`. An interval that was not kept is not in the set when its position comes. `gone` holds the
# bytes that are missing of an interval that is kept in part.
@kernel
def _most_kept(
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    next_use: np.ndarray,
    layer_of_position: np.ndarray,
    capacity: np.ndarray,
    sizes: np.ndarray,
    among: np.ndarray,
    divisible: bool,
    bypass: bool,
    bits: np.ndarray,
    words: np.ndarray,
    groups: np.ndarray,
    gone: np.ndarray,
    totals: np.ndarray,
) -> None:
    n_positions = layer_of_position.size
    top = np.int64(groups.size - 1)  # no group after this one holds anything
    used, kept, kept_bytes = totals
    for b in range(batch_layer.size):
        for p in range(batch_start[b], batch_start[b + 1]):
            if holds(bits, p):
                size = sizes[batch_layer[b]]
                if divisible:
                    size -= gone[p]
                used -= size
                kept += 1
                kept_bytes += size
        for late in range(2):
            # An interval takes room from its first batch on, or after it: so the newcomers come
            # before the eviction or after it.
            if (late == 0) == bypass:
                if not among[batch_layer[b]]:
                    continue
                for p in range(batch_start[b], batch_start[b + 1]):
                    closes = np.int64(next_use[p])
                    if closes == n_positions:
                        continue
                    used += sizes[batch_layer[b]]
                    add(bits, words, groups, closes)
                    top = max(top, closes >> 18)
                continue
            while used > capacity[b]:
                while groups[top] == 0:
                    top -= 1
                last = largest(bits, words, groups, top)
                size = sizes[layer_of_position[last]]
                if divisible:
                    size -= gone[last]
                    if size > used - capacity[b]:
                        gone[last] += used - capacity[b]
                        used = capacity[b]
                        break
                used -= size
                discard(bits, words, groups, last)
    totals[0], totals[1], totals[2] = used, kept, kept_bytes


# Positions grow with time, so that the lookup with the least previous position was used longest ago;
# one without has -1. What was taken is moved behind all others.
@kernel
def _without_oldest(
    batch_start: np.ndarray, next_use: np.ndarray, n_read: np.ndarray
) -> np.ndarray:
    n_positions = next_use.size
    previous = np.full(n_positions, -1, np.int64)
    left = next_use.copy()
    for p in range(n_positions):
        if next_use[p] < n_positions:
            previous[next_use[p]] = p
    for b in range(n_read.size):
        for _ in range(n_read[b]):
            oldest = batch_start[b]
            for p in range(batch_start[b], batch_start[b + 1]):
                if previous[p] < previous[oldest]:
                    oldest = p
            if previous[oldest] >= 0:
                left[previous[oldest]] = n_positions
            previous[oldest] = n_positions
    return left


# Rents of all intervals follow from one running sum of the prices, and the room that the paying
# ones take from one running sum of differences: an iteration is linear in batches and intervals.
@kernel
def _price_bound(
    first: np.ndarray,
    stop: np.ndarray,
    size: np.ndarray,
    capacity: np.ndarray,
    feasible: float,
    iterations: int,
) -> float:
    n = capacity.size
    price = np.zeros(n)
    total = np.zeros(n + 1)  # of the prices before each batch
    step = np.zeros(n)
    change = np.zeros(n + 1)
    length = 0.0
    for i in range(first.size):
        length += size[i] * (stop[i] - first[i])
    best = float(first.size)
    if length == 0.0:
        return best
    # Start: one price for all, at which an interval of the mean length pays half of what it is worth.
    price[:] = first.size / length / 2.0
    pace = 1.0
    since_best = 0
    for _ in range(iterations):
        value = 0.0
        for t in range(n):
            total[t + 1] = total[t] + price[t]
            value += price[t] * capacity[t]
        change[:] = 0.0
        for i in range(first.size):
            worth = 1.0 - size[i] * (total[stop[i]] - total[first[i]])
            if worth > 0.0:
                value += worth
                change[first[i]] += size[i]
                change[stop[i]] -= size[i]
        since_best += 1
        if value < best - 1e-9:
            best = value
            since_best = 0
        elif since_best == 10:
            pace *= 0.7
            since_best = 0
        # The subgradient is the room that is left at these prices.
        taken = 0.0
        norm = 0.0
        for t in range(n):
            taken += change[t]
            step[t] = 0.7 * step[t] + capacity[t] - taken
            if price[t] > 0.0 or step[t] < 0.0:
                norm += step[t] * step[t]
        if norm == 0.0 or value <= feasible:
            break
        scale = pace * (value - feasible) / norm
        for t in range(n):
            price[t] = max(0.0, price[t] - scale * step[t])
    return best
