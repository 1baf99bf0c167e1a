"""Resident entries in the order of their last touch: kernels for the kernels of several policies.

The entries form a doubly linked ring. ``after[key]`` is the entry that was touched next after
`key`, and ``before[key]`` the one before it. A sentinel `end`, which is no key, closes the ring:
``after[end]`` is the coldest entry and ``before[end]`` the most recent one, and in an empty list
both are `end`, so that no case is special. Several lists can share the two arrays, each with a
sentinel of its own.

Eviction is a loop in each policy and not a helper here: around the call of a helper that loops,
numba counts references to its arrays, which costs a quarter of a replay's time. The helpers below
cost nothing.
"""

from typing import SupportsIndex

import numpy as np

from tracekit.kernels import inlined


def new_lists(n_entries: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `after` and `before`, int32 [n_entries], in which every entry is a list alone."""
    after = np.arange(n_entries).astype(np.int32)
    return after, after.copy()


empty_lists = inlined(new_lists)  # the same, within a kernel


@inlined
def unlink(after: np.ndarray, before: np.ndarray, key: SupportsIndex) -> None:
    """Take `key` out of its list."""
    after[before[key]] = after[key]
    before[after[key]] = before[key]


@inlined
def append(after: np.ndarray, before: np.ndarray, end: SupportsIndex, key: SupportsIndex) -> None:
    """Put `key`, which is in no list, at the recent end of the list of `end`."""
    recent = before[end]
    after[recent] = key
    before[key] = recent
    after[key] = end
    before[end] = key


@inlined
def append_cold(
    after: np.ndarray, before: np.ndarray, end: SupportsIndex, key: SupportsIndex
) -> None:
    """Put `key`, which is in no list, at the cold end of the list of `end`."""
    append(before, after, end, key)  # backwards, the cold end is the recent one


@inlined
def pop_cold(after: np.ndarray, before: np.ndarray, end: SupportsIndex) -> np.int32:
    """Take the coldest entry out of the list of `end`, which is not empty, and return it."""
    key: np.int32 = after[end]
    after[end] = after[key]
    before[after[key]] = end
    return key
