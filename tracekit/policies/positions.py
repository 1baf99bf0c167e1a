"""A set of positions in a run, of which the largest is found at once: kernels for kernels.

The set is a bitset of three levels: `words` has a bit for each word of `bits` that is not empty, and
`groups` has one for each such word of `words`. Within a word high positions are low bits, so the
lowest set bit is the largest position.
"""

import numpy as np

from tracekit.kernels import inlined
from tracekit.policies.bits import count_bits, lowest_bit

_ONE = np.uint64(1)
_SIX, _LAST = np.uint64(6), np.uint64(63)
_TOP = np.uint64(1 << 63)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


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
    at = np.uint64(position)
    found: np.uint64 = (bits[at >> _SIX] >> (_LAST - (at & _LAST))) & _ONE
    return found


@inlined
def count(bits: np.ndarray, start: np.int64, stop: np.int64) -> np.int64:
    """Return how many positions from `start` to `stop` − 1 the set holds."""
    if start == stop:
        return np.int64(0)
    first, last = start >> 6, (stop - 1) >> 6
    of_first = _ALL >> np.uint64(start & 63)
    of_last = _ALL << np.uint64(63 - ((stop - 1) & 63))
    if first == last:
        return count_bits(bits[first] & of_first & of_last)
    found = count_bits(bits[first] & of_first) + count_bits(bits[last] & of_last)
    for w in range(first + 1, last):
        found += count_bits(bits[w])
    return found


# Most words of `bits` are not empty, but a processor cannot guess which: so two levels are written. A
# word of `words` hardly ever is empty, so that the third level is left alone.
@inlined
def add(bits: np.ndarray, words: np.ndarray, groups: np.ndarray, position: np.int64) -> None:
    """Put `position` into the set."""
    at = np.uint64(position)  # numba asks of an index with a sign whether it counts from the end
    w = at >> _SIX
    v = w >> _SIX
    bits[w] |= _TOP >> (at & _LAST)
    before = words[v]
    words[v] = before | (_TOP >> (w & _LAST))
    if before == 0:
        groups[v >> _SIX] |= _TOP >> (v & _LAST)


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
    at = np.uint64(position)
    w = at >> _SIX
    v = w >> _SIX
    bits[w] ^= _TOP >> (at & _LAST)
    if bits[w] == 0:
        words[v] ^= _TOP >> (w & _LAST)
        if words[v] == 0:
            groups[v >> _SIX] ^= _TOP >> (v & _LAST)
