"""Global LFU over (layer, expert), with counts that survive eviction."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tracekit.kernels import inlined, kernel
from tracekit.policies.base import StateArray, register
from tracekit.policies.fed import FedPolicy, KernelRun, Run
from tracekit.policies.model import Model


@register
class LFU(FedPolicy):
    """Evict the entry with the fewest touches so far; of equals, the one touched longest ago.

    A batch touches each of its experts once, however many of its tokens selected it. The count
    survives eviction: an expert that comes back continues with the count it had. With
    ``--bypass`` an expert that was just used competes with the count that it then has: one that was
    used for the first time is dropped at once, unless another was used once only.
    """

    name = "lfu"
    summary = "evicts the expert with the fewest touches so far, ties least recent"
    can_bypass = True

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        return (StateArray("touches", "L × E", 4 * n_layers * n_expert, "how often each was used"),)

    def start(self, model: Model, budgets: np.ndarray) -> Run:
        return KernelRun(
            budgets,
            _lfu,
            state=lambda: LFUState.empty(model.n_keys, model.n_expert),
            inputs=lambda batches: (batches.keys, batches.batch_start, batches.key_bytes),
            go_on=LFUState.renumber,
        )


# A rank is how often a key was touched, and in its low bits the number of the lookup that touched it
# last. The least rank is evicted.
_LOOKUP = (1 << 32) - 1
_NONE = np.iinfo(np.int64).max  # above every rank


class LFUState(NamedTuple):
    """What `_lfu` knows and changes. A call of it with the state that another one left continues its run.

    Attributes
    ----------
    seen : int32 [n_keys]
        The keys that earlier calls looked up, in the order of last touch: the lookups of number 0 on.
    rank : int64 [n_keys]
        Of each key.
    is_resident : bool [n_keys]
    heap : int64 [n_keys + 1]
        The ranks of the residents, of which some may have grown since.
    waiting : int64 [n_expert]
        The ranks of residents that a batch has touched and that are not in the heap.
    totals : int64 [3]
        How many ranks are in the heap, bytes resident, how many keys are in `seen`.
    """

    seen: np.ndarray
    rank: np.ndarray
    is_resident: np.ndarray
    heap: np.ndarray
    waiting: np.ndarray
    totals: np.ndarray

    @classmethod
    def empty(cls, n_keys: int, n_expert: int) -> "LFUState":
        """Return the state before the first batch."""
        return cls(
            np.empty(n_keys, np.int32),
            np.zeros(n_keys, np.int64),
            np.zeros(n_keys, np.bool_),
            np.full(n_keys + 1, _NONE),
            np.empty(n_expert, np.int64),
            np.zeros(3, np.int64),
        )

    def renumber(self) -> None:
        """Give the lookups new numbers, so that those of another call can follow them."""
        touched = np.flatnonzero(self.rank)
        order = touched[np.argsort(self.rank[touched] & _LOOKUP)]
        self.seen[: len(order)] = order
        self.rank[order] = (self.rank[order] & ~_LOOKUP) | np.arange(len(order))
        in_order = np.sort(self.rank[self.is_resident])  # an ascending list is a heap
        self.heap[: len(in_order)] = in_order
        self.totals[2] = len(order)


# The ranks of the residents form a heap, the least on top. A rank only grows, so a hit changes
# nothing in the heap: a rank is brought up to date when it comes to the top. If the batch has touched
# its key, the key is spared: it leaves the heap, and comes back after the eviction, when what the
# batch has read comes into it. With `bypass` nothing is spared.
#
# What leaves the heap leaves a gap on top, which is closed when the next one has to go: most often a
# rank that comes into the heap fills it.
@kernel
def _lfu(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    seen: np.ndarray,
    rank: np.ndarray,
    is_resident: np.ndarray,
    heap: np.ndarray,
    waiting: np.ndarray,
    totals: np.ndarray,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    size, used, n_seen = totals[0], totals[1], totals[2]
    for b in range(batch_start.size - 1):
        start, stop = batch_start[b], batch_start[b + 1]
        n_waiting = np.int64(0)
        for p in range(start, stop):
            key = keys[p]
            now = (rank[key] | _LOOKUP) + (1 + n_seen + p)
            rank[key] = now
            if hit.size:
                hit[p] = is_resident[key]
            waiting[n_waiting] = now
            n_waiting += not is_resident[key]
            is_resident[key] = True
        hits[b] = stop - start - n_waiting
        if n_waiting:
            used += n_waiting * key_bytes[keys[start]]

        spared_from = n_seen + start
        if bypass:
            spared_from = np.int64(_LOOKUP)
            for now in waiting[:n_waiting]:
                _push(heap, size, now)
                size += 1
            n_waiting = np.int64(0)
        has_gap = False
        while used > budget:
            if has_gap:
                size -= 1
                _close_gap(heap, size)
                has_gap = False
            if size == 0:
                break
            p = (heap[0] & _LOOKUP) - n_seen
            key = keys[p] if p >= 0 else seen[p + n_seen]
            now = rank[key]
            if (now & _LOOKUP) >= spared_from:
                waiting[n_waiting] = now
                n_waiting += 1
                has_gap = True
            elif now == heap[0]:
                is_resident[key] = False
                used -= key_bytes[key]
                has_gap = True
            else:
                _sink(heap, size, now)
        n_placed = np.int64(0)
        if has_gap and n_waiting:
            _sink(heap, size, waiting[0])
            n_placed += 1
        elif has_gap:
            size -= 1
            _close_gap(heap, size)
        for now in waiting[n_placed:n_waiting]:
            _push(heap, size, now)
            size += 1
        resident[b] = used
    totals[0], totals[1] = size, used


@inlined
def _sink(heap: np.ndarray, size: np.int64, rank: np.int64) -> None:
    """Put `rank` on top, where there is a gap, or below if others are less."""
    gap = np.int64(0)
    while True:
        below = 2 * gap + 1
        if below >= size:
            break
        if heap[below + 1] < heap[below]:  # behind the last one stands `_NONE`
            below += 1
        if rank < heap[below]:
            break
        heap[gap] = heap[below]
        gap = below
    heap[gap] = rank


@inlined
def _close_gap(heap: np.ndarray, last: np.int64) -> None:
    """Fill the gap on top with the rank at `last`, the end of the heap, unless that is the gap."""
    rank = heap[last]
    heap[last] = _NONE
    if last > 0:
        _sink(heap, last, rank)


@inlined
def _push(heap: np.ndarray, size: np.int64, rank: np.int64) -> None:
    """Put `rank` at the end of the heap of `size` ranks, or above if others are more."""
    gap = size
    while gap > 0:
        above = (gap - 1) >> 1
        if heap[above] < rank:
            break
        heap[gap] = heap[above]
        gap = above
    heap[gap] = rank
