"""The hits of LRU at any number of budgets in one pass, where all experts have one size.

LRU holds what was touched last, as much as its budget allows. So a lookup hits if no more keys were
touched since the last touch of its key, its own included, than the budget has room for: one count
answers for all budgets. This is the stack distance of R. L. Mattson et al. (1970). Where sizes differ,
see `depths`. Nothing here knows a policy.
"""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.batches import Batches
from tracekit.policies.bits import count_bits

_TOUCHES_A_KEY = 4
_SECTION = 1024  # touches: 16 words of 64; the kernel shifts by 10 and 6


def hits_at(batches: Batches, budgets: np.ndarray) -> np.ndarray:
    """Return the hits of LRU at each of `budgets`.

    Parameters
    ----------
    batches : Batches
        Its experts have one size.
    budgets : int64 [C]
        In bytes.

    Returns
    -------
    int64 [C, 3, L]
        By the kind of the batch (`Batches.kind`) and its layer.
    """
    size = max(1, int(batches.expert_bytes.max(initial=0)))
    room, place = np.unique(budgets // size, return_inverse=True)
    found = np.zeros((3, len(batches.expert_bytes), len(room) + 1), np.int64)
    largest_batch = int(batches.lookups.max(initial=0))
    n_sections = -(-(_TOUCHES_A_KEY * batches.n_keys + largest_batch) // _SECTION)
    _hits(
        batches.keys,
        batches.batch_start,
        batches.layer,
        batches.kind,
        np.searchsorted(room, np.arange(batches.n_keys + 1)),
        batches.bypass,
        np.full(batches.n_keys, -1, np.int32),
        np.zeros(n_sections * _SECTION, np.int32),
        np.zeros(n_sections * 16, np.uint64),
        np.zeros((n_sections, 16), np.int64),
        np.zeros(n_sections, np.int64),
        np.zeros(n_sections, np.int64),
        -(np.arange(16) > np.arange(16)[:, None]).astype(np.int64),
        found,
    )
    hits: np.ndarray = np.moveaxis(found.cumsum(axis=2)[:, :, :-1], 2, 0)
    return hits[place]


# Touches are numbered as they come, and each has a bit in `last`: whether it is the last of its key.
# `in_word` counts the bits of each word, in rows of a section, and `behind` those of all later sections.
# A count is then a sum over the words of one section; `after` has the masks that leave earlier words
# out. When all numbers are taken, the last touches get the first ones, in their order.
#
# The keys of the batch before are in the cache in any case, unless `bypass`: a batch that is alone
# larger than the budget stays until the next one ends.
@kernel
def _hits(
    keys: np.ndarray,
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    kind: np.ndarray,
    least_with: np.ndarray,
    bypass: bool,
    touch_of: np.ndarray,
    key_at: np.ndarray,
    last: np.ndarray,
    in_word: np.ndarray,
    behind: np.ndarray,
    gone: np.ndarray,
    after: np.ndarray,
    found: np.ndarray,
) -> None:
    one = np.uint64(1)
    n_never = found.shape[2] - 1
    n_touches = np.int64(0)
    before = np.int64(0)  # the first touch of the batch before
    for b in range(batch_layer.size):
        start, stop = np.int64(batch_start[b]), np.int64(batch_start[b + 1])
        if n_touches + stop - start > key_at.size:
            n_used = np.int64(0)
            last[:] = 0
            in_word[:] = 0
            for old in range(n_touches):
                if old == before:
                    before = n_used
                key = key_at[old]
                if touch_of[key] == old:
                    key_at[n_used] = key
                    touch_of[key] = n_used
                    last[n_used >> 6] |= one << np.uint64(n_used & 63)
                    in_word[n_used >> 10, (n_used >> 6) & 15] += 1
                    n_used += 1
            before = np.int64(min(before, n_used))
            n_touches = n_used
            total = np.int64(0)
            for section in range(behind.size - 1, -1, -1):
                behind[section] = total
                for word in range(16):
                    total += in_word[section, word]

        for p in range(start, stop):
            touch = np.int64(touch_of[keys[p]])
            least = np.int64(n_never)  # the least budget that has the key
            if touch >= 0:
                its_section, its_word = touch >> 10, (touch >> 6) & 15
                count = behind[its_section]
                count += count_bits(last[touch >> 6] >> np.uint64(touch & 63))
                for word in range(after.shape[1]):
                    count += in_word[its_section, word] & after[its_word, word]
                least = np.int64(least_with[count])
                if touch >= before and not bypass:
                    least = np.int64(0)
            found[kind[b], batch_layer[b], least] += 1

        before = n_touches
        for p in range(start, stop):
            key = keys[p]
            touch = np.int64(touch_of[key])
            if touch >= 0:
                last[touch >> 6] ^= one << np.uint64(touch & 63)
                in_word[touch >> 10, (touch >> 6) & 15] -= 1
                gone[touch >> 10] += 1
            touch_of[key] = n_touches
            key_at[n_touches] = key
            last[n_touches >> 6] |= one << np.uint64(n_touches & 63)
            in_word[n_touches >> 10, (n_touches >> 6) & 15] += 1
            gone[n_touches >> 10] -= 1
            n_touches += 1
        change = np.int64(0)
        for section in range((n_touches - 1) >> 10, -1, -1):
            behind[section] += change
            change -= gone[section]
            gone[section] = 0
