"""Resident entries in a heap, the one worth least on top: helpers for the kernels of policies.

Three arrays hold the entries: ``heap`` their keys, ``worth`` what each is worth, and ``since`` when
it was touched. An entry stands above another if it is worth less, or if both are worth the same and
it was touched before. What is put in or comes down moves a number of steps that is the logarithm of
the heap's size at most; no key is looked for.

Behind the last entry stands ``inf``, so that every entry above it has two below; and which of the two
comes up is computed without a jump, which a processor would guess wrong every other time.
"""

from typing import Any

import numpy as np

from tracekit.kernels import inlined

Whole = int | np.signedinteger[Any]
Real = float | np.floating[Any]


@inlined
def empty_heap(n_entries: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `heap`, `worth` and `since` with room for `n_entries`: int32, float64, int64."""
    heap = np.zeros(n_entries + 2, np.int32)
    return heap, np.full(n_entries + 2, np.inf), np.zeros(n_entries + 2, np.int64)


@inlined
def sink(
    heap: np.ndarray,
    worth: np.ndarray,
    since: np.ndarray,
    size: Whole,
    place: Whole,
    key: Whole,
    its_worth: Real,
    its_since: Whole,
) -> None:
    """Put an entry at `place`, which is free, or below it if others are worth less."""
    free = place
    while 2 * free + 1 < size:
        one = 2 * free + 1
        other = one + 1
        is_tie = (worth[other] == worth[one]) & (since[other] < since[one])
        one += (worth[other] < worth[one]) | is_tie
        if its_worth < worth[one] or (its_worth == worth[one] and its_since < since[one]):
            break
        heap[free] = heap[one]
        worth[free] = worth[one]
        since[free] = since[one]
        free = one
    heap[free] = key
    worth[free] = its_worth
    since[free] = its_since


@inlined
def push(
    heap: np.ndarray,
    worth: np.ndarray,
    since: np.ndarray,
    size: Whole,
    key: Whole,
    its_worth: Real,
    its_since: Whole,
) -> None:
    """Put an entry into the heap of `size` entries."""
    free = size
    while free > 0:
        above = (free - 1) >> 1
        if worth[above] < its_worth or (worth[above] == its_worth and since[above] < its_since):
            break
        heap[free] = heap[above]
        worth[free] = worth[above]
        since[free] = since[above]
        free = above
    heap[free] = key
    worth[free] = its_worth
    since[free] = its_since


@inlined
def pop(heap: np.ndarray, worth: np.ndarray, since: np.ndarray, size: Whole) -> None:
    """Take the entry on top out of the heap of `size` entries, one or more."""
    end = size - 1
    key, its_worth, its_since = heap[end], worth[end], since[end]
    worth[end] = np.inf
    sink(heap, worth, since, end, 0, key, its_worth, its_since)
    if end == 0:
        worth[0] = np.inf
