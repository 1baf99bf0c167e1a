"""The bits of a word: helpers of kernels."""

import numpy as np

from tracekit.kernels import inlined

_ONE, _TWO, _FOUR = np.uint64(1), np.uint64(2), np.uint64(4)
_PAIRS = np.uint64(0x5555555555555555)
_QUADS = np.uint64(0x3333333333333333)
_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SUM = np.uint64(0x0101010101010101)
_LAST_BYTE = np.uint64(56)


@inlined
def lowest_bit(word: np.uint64) -> np.int64:
    """Return which bit of `word` is the lowest that is set, from 0; 64 if none is."""
    below: np.int64 = count_bits(~word & (word - _ONE))
    return below


# LLVM knows this way to count bits, and makes one instruction of it where the processor has one.
@inlined
def count_bits(word: np.uint64) -> np.int64:
    """Return how many bits of `word` are set."""
    word -= (word >> _ONE) & _PAIRS
    word = (word & _QUADS) + ((word >> _TWO) & _QUADS)
    word = (word + (word >> _FOUR)) & _BYTES
    return np.int64((word * _SUM) >> _LAST_BYTE)
