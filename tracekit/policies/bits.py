"""The place of the lowest set bit of a word: a helper of kernels."""

import numpy as np

from tracekit.kernels import inlined

_ONE, _TWO, _FOUR = np.uint64(1), np.uint64(2), np.uint64(4)
_PAIRS = np.uint64(0x5555555555555555)
_QUADS = np.uint64(0x3333333333333333)
_BYTES = np.uint64(0x0F0F0F0F0F0F0F0F)
_SUM = np.uint64(0x0101010101010101)
_LAST_BYTE = np.uint64(56)


# How many bits are set below the lowest. LLVM knows this way to count bits, and makes one instruction
# of it where the processor has one.
@inlined
def lowest_bit(word: np.uint64) -> np.int64:
    """Return which bit of `word` is the lowest that is set, from 0; 64 if none is."""
    below = ~word & (word - _ONE)
    below -= (below >> _ONE) & _PAIRS
    below = (below & _QUADS) + ((below >> _TWO) & _QUADS)
    below = (below + (below >> _FOUR)) & _BYTES
    return np.int64((below * _SUM) >> _LAST_BYTE)
