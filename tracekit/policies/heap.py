"""Resident entries in a heap, the one worth least on top: helpers for the kernels of policies.

``heap[:size]`` holds the keys, and ``spot[key]`` says where a key stands in it. A key stands above
another if it is worth less, or if both are worth the same and it was touched before. A key whose
worth grows sinks in a number of steps that is the logarithm of the heap's size, and so do the
others when the top goes; no key is looked for.
"""

from typing import Any

import numpy as np

from tracekit.kernels import inlined

Whole = int | np.signedinteger[Any]


@inlined
def goes_before(worth: np.ndarray, last: np.ndarray, one: Whole, other: Whole) -> bool:
    """Say whether key `one` is evicted before key `other`."""
    if worth[one] == worth[other]:
        return bool(last[one] < last[other])
    return bool(worth[one] < worth[other])


@inlined
def sink(
    heap: np.ndarray,
    spot: np.ndarray,
    worth: np.ndarray,
    last: np.ndarray,
    size: Whole,
    place: Whole,
) -> None:
    """Bring the key at `place` down to where it belongs, after its worth has grown."""
    key = heap[place]
    while 2 * place + 1 < size:
        child = 2 * place + 1
        if child + 1 < size and goes_before(worth, last, heap[child + 1], heap[child]):
            child += 1
        if not goes_before(worth, last, heap[child], key):
            break
        heap[place] = heap[child]
        spot[heap[place]] = place
        place = child
    heap[place] = key
    spot[key] = place


@inlined
def push(
    heap: np.ndarray, spot: np.ndarray, worth: np.ndarray, last: np.ndarray, size: Whole, key: Whole
) -> None:
    """Put `key`, which is not in the heap, into the heap of `size` keys."""
    place = size
    while place > 0:
        above = (place - 1) >> 1
        if not goes_before(worth, last, key, heap[above]):
            break
        heap[place] = heap[above]
        spot[heap[place]] = place
        place = above
    heap[place] = key
    spot[key] = place
