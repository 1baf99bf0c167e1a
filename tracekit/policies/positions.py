"""A set of positions in a run, of which the largest is found at once: kernels for kernels.

The set is a bitset of three levels: `words` has a bit for each word of `bits` that is not empty, and
`groups` has one for each such word of `words`. Within a word high positions are low bits, so the
lowest set bit is the largest position.
"""

import numpy as np

from tracekit.kernels import inlined
from tracekit.policies.bits import lowest_bit

_ONE = np.uint64(1)


def empty_set(n_positions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `bits`, `words`, `groups` of an empty set of positions below `n_positions`."""
    return (
        np.zeros((n_positions >> 6) + 1, np.uint64),
        np.zeros((n_positions >> 12) + 1, np.uint64),
        np.zeros((n_positions >> 18) + 1, np.uint64),
    )


def set_of(positions: np.ndarray, n_positions: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return `bits`, `words`, `groups` of the set of `positions`, which are below `n_positions`."""
    levels = empty_set(n_positions)
    members = positions.astype(np.int64)
    for level in levels:
        np.bitwise_or.at(level, members >> 6, _ONE << (63 - (members & 63)).astype(np.uint64))
        members = members >> 6
    return levels


def members(bits: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return which positions from `start` to `stop` − 1 the set holds, counted from `start`, int64."""
    first = start >> 6
    shifts = np.arange(63, -1, -1, dtype=np.uint64)
    is_held = (bits[first : (stop >> 6) + 1, None] >> shifts) & _ONE
    return np.flatnonzero(is_held.reshape(-1)[start - (first << 6) : stop - (first << 6)])


@inlined
def holds(bits: np.ndarray, position: int) -> np.uint64:
    """Return 1 if the set holds `position`, else 0."""
    found: np.uint64 = (bits[position >> 6] >> np.uint64(63 - (position & 63))) & _ONE
    return found


# Most words are not empty, but a processor cannot guess which: so all three levels are written.
@inlined
def add(bits: np.ndarray, words: np.ndarray, groups: np.ndarray, position: np.int64) -> None:
    """Put `position` into the set."""
    w = position >> 6
    bits[w] |= _ONE << np.uint64(63 - (position & 63))
    words[w >> 6] |= _ONE << np.uint64(63 - (w & 63))
    groups[w >> 12] |= _ONE << np.uint64(63 - ((w >> 6) & 63))


@inlined
def largest(bits: np.ndarray, words: np.ndarray, groups: np.ndarray, top: np.int64) -> np.int64:
    """Return the largest position; `top` is the last group that is not empty."""
    g = (top << 6) + 63 - lowest_bit(groups[top])
    w = (g << 6) + 63 - lowest_bit(words[g])
    position: np.int64 = (w << 6) + 63 - lowest_bit(bits[w])
    return position


@inlined
def discard(bits: np.ndarray, words: np.ndarray, groups: np.ndarray, position: np.int64) -> None:
    """Take `position`, which the set holds, out of it."""
    w = position >> 6
    bits[w] ^= _ONE << np.uint64(63 - (position & 63))
    if bits[w] == 0:
        words[w >> 6] ^= _ONE << np.uint64(63 - (w & 63))
        if words[w >> 6] == 0:
            groups[w >> 12] ^= _ONE << np.uint64(63 - ((w >> 6) & 63))
