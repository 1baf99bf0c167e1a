"""Residents in a heap, the one worth least on top: helpers for the kernels of several policies.

What an entry is worth may only grow. So a touch changes nothing in the heap: what the heap knows of
an entry is never too much, and only an entry that comes to the top is brought up to date. What is
put in or comes down moves a number of steps that is the logarithm of the heap's size at most; no
key is looked for.

Behind the last entry stands ``inf``, so that every entry above it has two below; and which of the two
comes up is computed without a jump, which a processor would guess wrong every other time.
"""

from typing import NamedTuple

import numpy as np

from tracekit.kernels import Real, Whole, inlined


class Heap(NamedTuple):
    """Entries of which each stands above those that are evicted after it, and what each key is worth.

    An entry goes before another if it is worth less, or if both are worth the same and it was
    touched before.

    Attributes
    ----------
    keys, known, since : int32, float64, int64 [n_keys + 2]
        The entries: a key, what it was worth when it was placed, and its last touch then.
    worth : float64 [n_keys]
        What each key is worth.
    last : int64 [n_keys]
        The lookup that touched each key last; -1: none.
    """

    keys: np.ndarray
    known: np.ndarray
    since: np.ndarray
    worth: np.ndarray
    last: np.ndarray


def new_heap(n_keys: int) -> Heap:
    """Return a heap without entries, in which no key is worth anything."""
    return Heap(
        np.zeros(n_keys + 2, np.int32),
        np.full(n_keys + 2, np.inf),
        np.zeros(n_keys + 2, np.int64),
        np.zeros(n_keys, np.float64),
        np.full(n_keys, -1, np.int64),
    )


empty_heap = inlined(new_heap)  # the same, within a kernel


@inlined
def sink(heap: Heap, size: Whole, place: Whole, key: Whole, known: Real, since: Whole) -> None:
    """Put an entry at `place`, which is free, or below it if others go before."""
    free = place
    while 2 * free + 1 < size:
        one = 2 * free + 1
        other = one + 1
        is_tie = (heap.known[other] == heap.known[one]) & (heap.since[other] < heap.since[one])
        one += (heap.known[other] < heap.known[one]) | is_tie
        if known < heap.known[one] or (known == heap.known[one] and since < heap.since[one]):
            break
        heap.keys[free] = heap.keys[one]
        heap.known[free] = heap.known[one]
        heap.since[free] = heap.since[one]
        free = one
    heap.keys[free] = key
    heap.known[free] = known
    heap.since[free] = since


@inlined
def push(heap: Heap, size: Whole, key: Whole) -> None:
    """Put `key`, which has no entry, into the heap of `size` entries."""
    known, since = heap.worth[key], heap.last[key]
    free = size
    while free > 0:
        above = (free - 1) >> 1
        if heap.known[above] < known or (heap.known[above] == known and heap.since[above] < since):
            break
        heap.keys[free] = heap.keys[above]
        heap.known[free] = heap.known[above]
        heap.since[free] = heap.since[above]
        free = above
    heap.keys[free] = key
    heap.known[free] = known
    heap.since[free] = since


@inlined
def push_all(heap: Heap, size: Whole, keys: np.ndarray, n: Whole) -> Whole:
    """Put the first `n` of `keys` into the heap; return its size then."""
    for i in range(n):
        push(heap, size + i, keys[i])
    return size + n


@inlined
def pop(heap: Heap, size: Whole) -> None:
    """Take the entry on top out of the heap of `size` entries, one or more."""
    end = size - 1
    key, known, since = heap.keys[end], heap.known[end], heap.since[end]
    heap.known[end] = np.inf
    if end > 0:
        sink(heap, end, 0, key, known, since)


@inlined
def look_up(
    keys: np.ndarray,
    start: Whole,
    stop: Whole,
    key_bytes: np.ndarray,
    is_resident: np.ndarray,
    hit: np.ndarray,
    missed: np.ndarray,
) -> tuple[Whole, Whole, Whole]:
    """Look up ``keys[start:stop]``: note which hit, make the others resident and write them to `missed`.

    Returns
    -------
    tuple
        How many hit, how many are in `missed`, and the bytes of those.
    """
    n_hits, n_missed, read = np.int64(0), np.int64(0), np.int64(0)
    for p in range(start, stop):
        key = keys[p]
        if hit.size:
            hit[p] = is_resident[key]
        if is_resident[key]:
            n_hits += 1
        else:
            is_resident[key] = True
            read += key_bytes[key]
            missed[n_missed] = key
            n_missed += 1
    return n_hits, n_missed, read


@inlined
def evict(
    heap: Heap,
    size: Whole,
    key_bytes: np.ndarray,
    excess: Whole,
    spared_from: Whole,
    spared: np.ndarray,
    n_spared: Whole,
    gone: np.ndarray,
) -> tuple[Whole, Whole, Whole]:
    """Evict the entries worth least until `excess` bytes are gone, or nothing else may go.

    Those touched by the lookup `spared_from` or a later one leave the heap and are spared: they are
    written to `spared`, behind the first `n_spared`. What is evicted is written to `gone`.

    Returns
    -------
    tuple
        The size of the heap, how many are in `spared`, and how many in `gone`.
    """
    n_gone = np.int64(0)
    left = excess
    while left > 0 and size > 0:
        key = heap.keys[0]
        if heap.since[0] != heap.last[key]:
            sink(heap, size, 0, key, heap.worth[key], heap.last[key])
            continue
        pop(heap, size)
        size -= 1
        if heap.last[key] >= spared_from:
            spared[n_spared] = key
            n_spared += 1
        else:
            gone[n_gone] = key
            n_gone += 1
            left -= key_bytes[key]
    return size, n_spared, n_gone


@inlined
def make_room(
    heap: Heap,
    size: Whole,
    key_bytes: np.ndarray,
    excess: Whole,
    spared_from: Whole,
    is_resident: np.ndarray,
    waiting: np.ndarray,
    n_waiting: Whole,
    gone: np.ndarray,
) -> tuple[Whole, Whole, Whole]:
    """Evict as `evict` does where `excess` is above 0, and put what waits into the heap.

    The first `n_waiting` of `waiting` are resident and not in the heap: what the batch missed. They
    come into it before the eviction if no lookup is spared from it, and else after it.

    Returns
    -------
    tuple
        The size of the heap, how many keys were written to `gone`, and their bytes.
    """
    n_gone, freed = np.int64(0), np.int64(0)
    if n_waiting and heap.last[waiting[0]] < spared_from:
        size = push_all(heap, size, waiting, n_waiting)
        n_waiting = np.int64(0)
    if excess > 0:
        size, n_waiting, n_gone = evict(
            heap, size, key_bytes, excess, spared_from, waiting, n_waiting, gone
        )
        for key in gone[:n_gone]:
            is_resident[key] = False
            freed += key_bytes[key]
    return push_all(heap, size, waiting, n_waiting), n_gone, freed
