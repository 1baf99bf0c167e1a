"""The hits and peaks of LRU from some batch of a run on, at any number of budgets, of two sizes.

A lookup hits if the keys that were touched since the last touch of its key, its own included, have no
more bytes together than the budget: one sum answers for all budgets. Where all experts have one size,
`stack` is the same with counts; `depths` goes along with each budget. Nothing here knows a policy.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import Whole, inlined, kernel
from tracekit.policies.batches import Batches
from tracekit.policies.bits import count_bits, lowest_bit

_TOUCHES_A_KEY = 4
_SECTION = 1024  # touches: 16 words of 64; the kernel shifts by 10 and 6
_STRETCHES = 1024  # into which bytes are divided, to find a budget without a search


@dataclass(frozen=True, eq=False)
class Touched:
    """Where a run stands before one of its batches.

    Attributes
    ----------
    batch : int
    keys : int32 [n]
        All that were touched, once each, in the order of their last touch.
    n_last : int
        How many of them, at the end, the batch before touched.
    rising : int64 [2, C]
        Ranks of the budgets whose peak may still rise, for each kind of `Batches.peak_kind` from 1
        on, ascending.
    n_rising : int64 [2]
    """

    batch: int
    keys: np.ndarray
    n_last: int
    rising: np.ndarray
    n_rising: np.ndarray


def suits(batches: Batches) -> bool:
    """Say whether there are two sizes, and both are small multiples of one number."""
    sizes = np.unique(batches.key_bytes)
    if len(sizes) != 2:
        return False
    return int(sizes[1]) // int(np.gcd.reduce(sizes)) * _SECTION < 1 << 31  # of an int32


def go_on(
    batches: Batches,
    budgets: np.ndarray,
    touched: Touched,
    found: np.ndarray,
    peaks: np.ndarray,
) -> None:
    """Count the hits from a batch on, and raise the peaks.

    Parameters
    ----------
    batches : Batches
        They suit.
    budgets : int64 [C]
        In bytes, ascending.
    touched : Touched
    found : int64 [3, L, C + 1]
        By kind and layer of a batch, the lookups that hit from a rank of the budgets on; C: at none.
    peaks : int64 [C, 2]
        See `depths.hits_and_peaks_at`.
    """
    largest_batch = int(batches.lookups.max(initial=0))
    n_sections = (_TOUCHES_A_KEY * batches.n_keys + largest_batch) // _SECTION + 1
    key_at = np.zeros(n_sections * _SECTION, np.int32)
    n_sections += 1  # a tail may stand behind the last touch
    key_at[: len(touched.keys)] = touched.keys
    touch_of = np.full(batches.n_keys, -1, np.int32)
    touch_of[touched.keys] = np.arange(len(touched.keys))
    # Sizes are counted in what divides all of them.
    unit = int(np.gcd.reduce(batches.key_bytes))
    small, large = (np.unique(batches.key_bytes) // unit).tolist()
    room = budgets // unit
    shift = max(0, int(batches.bank_bytes // unit).bit_length() - _STRETCHES.bit_length() + 1)
    peaks //= unit
    _hits(
        batches.keys,
        batches.batch_start,
        batches.layer,
        batches.kind,
        batches.peak_kind,
        (batches.key_bytes // unit == large).astype(np.int64),
        small,
        large,
        room,
        np.searchsorted(room, np.arange(_STRETCHES) << shift).astype(np.int32),
        shift,
        batches.bypass,
        touched.batch,
        len(touched.keys),
        touched.n_last,
        touch_of,
        key_at,
        np.zeros((n_sections * 16, 2), np.uint64),
        np.zeros((n_sections, 16), np.int32),
        np.zeros(n_sections, np.int64),
        np.zeros(n_sections, np.int64),
        -(np.arange(16) > np.arange(16)[:, None]).astype(np.int32),
        np.zeros(len(room), np.int64),
        touched.rising,
        touched.n_rising,
        found,
        peaks,
    )
    peaks *= unit


# Touches are numbered as they come. `last` has two bits for each: whether it is the last of its key, and
# whether the key is a large one too. `in_word` has the sizes of each word of last touches, in rows of a
# section, and `behind` those of all later sections; `after` has the masks that leave earlier words out.
# When all numbers are taken, the last touches get the first ones, in their order.
#
# The keys of the batch before are in the cache in any case, unless `bypass`: a batch that is alone
# larger than the budget stays until the next one ends.
#
# A peak is looked at where it may still rise (`rising`), if the budget missed since (`missed`), as
# nothing else changes what is resident. From `tails` on all may be resident; tails only move forward.
@kernel
def _hits(
    keys: np.ndarray,
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    kind: np.ndarray,
    peak_kind: np.ndarray,
    is_large: np.ndarray,
    small: Whole,
    large: Whole,
    room: np.ndarray,
    rank_from: np.ndarray,
    shift: Whole,
    bypass: bool,
    first_batch: Whole,
    n_touches: Whole,
    n_last: Whole,
    touch_of: np.ndarray,
    key_at: np.ndarray,
    last: np.ndarray,
    in_word: np.ndarray,
    behind: np.ndarray,
    gone: np.ndarray,
    after: np.ndarray,
    tails: np.ndarray,
    rising: np.ndarray,
    n_rising: np.ndarray,
    found: np.ndarray,
    peaks: np.ndarray,
) -> None:
    one = np.uint64(1)
    n_budgets = np.int64(room.size)
    before = n_touches - n_last  # the first touch of the batch before
    total = np.int64(0)  # of all keys that were touched
    is_new = True
    missed = np.full(2, n_budgets)  # of each side: which ranks did since it was looked at
    for b in range(first_batch, batch_layer.size):
        start, stop = np.int64(batch_start[b]), np.int64(batch_start[b + 1])
        if is_new or n_touches + stop - start > key_at.size:
            is_new = False
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
                    bit = one << np.uint64(n_used & 63)
                    last[n_used >> 6, 0] |= bit
                    last[n_used >> 6, 1] |= bit * np.uint64(is_large[key])
                    in_word[n_used >> 10, (n_used >> 6) & 15] += large if is_large[key] else small
                    n_used += 1
            before = np.int64(min(before, n_used))
            n_touches = n_used
            tails[:] = 0
            total = np.int64(0)
            for section in range(behind.size - 1, -1, -1):
                behind[section] = total
                for word in range(16):
                    total += in_word[section, word]

        least_hit = np.int64(0)  # this rank and those above it did not miss
        for p in range(start, stop):
            touch = np.int64(touch_of[keys[p]])
            least = n_budgets  # the least budget that has the key
            if touch >= 0:
                distance = _distance(touch, last, small, large, in_word, behind, after)
                least = np.int64(rank_from[distance >> shift])
                while least < n_budgets and room[least] < distance:
                    least += 1
                least_hit = max(least_hit, least)
                if touch >= before and not bypass:
                    least = np.int64(0)
            else:
                least_hit = n_budgets
            found[kind[b], batch_layer[b], least] += 1

        before = n_touches
        of_large = np.uint64(is_large[keys[start]] if stop > start else 0)
        size = large if of_large else small
        for p in range(start, stop):
            key = keys[p]
            touch = np.int64(touch_of[key])
            if touch >= 0:
                bit = one << np.uint64(touch & 63)
                last[touch >> 6, 0] ^= bit
                last[touch >> 6, 1] ^= bit * of_large
                in_word[touch >> 10, (touch >> 6) & 15] -= size
                gone[touch >> 10] += size
            else:
                total += size
            touch_of[key] = n_touches
            key_at[n_touches] = key
            bit = one << np.uint64(n_touches & 63)
            last[n_touches >> 6, 0] |= bit
            last[n_touches >> 6, 1] |= bit * of_large
            in_word[n_touches >> 10, (n_touches >> 6) & 15] += size
            gone[n_touches >> 10] -= size
            n_touches += 1
        change = np.int64(0)
        for section in range((n_touches - 1) >> 10, -1, -1):
            behind[section] += change
            change -= gone[section]
            gone[section] = 0

        for each in range(2):
            missed[each] = max(missed[each], least_hit)
        side = np.int64(peak_kind[b]) - 1
        place = np.int64(0)
        while side >= 0 and place < n_rising[side]:
            rank = rising[side, place]
            if total <= room[rank] or rank >= missed[side]:
                break  # this budget and all larger ones hold all that was seen, or what they held
            tail = tails[rank]
            held = _distance(tail, last, small, large, in_word, behind, after)
            at = tail >> 6
            live = (last[at, 0] >> np.uint64(tail & 63)) << np.uint64(tail & 63)
            while held > room[rank]:
                while live == 0:
                    at += 1
                    live = last[at, 0]
                bit = live & (~live + one)
                live ^= bit
                held -= large if last[at, 1] & bit else small
            tails[rank] = min((at << 6) + lowest_bit(live), n_touches)
            peaks[rank, side] = max(peaks[rank, side], held)
            place += 1
            if peaks[rank, side] == room[rank]:
                n_rising[side] -= 1
                place -= 1
                for later in range(place, n_rising[side]):
                    rising[side, later] = rising[side, later + 1]
        if side >= 0:
            missed[side] = 0


@inlined
def _distance(
    touch: np.int64,
    last: np.ndarray,
    small: Whole,
    large: Whole,
    in_word: np.ndarray,
    behind: np.ndarray,
    after: np.ndarray,
) -> np.int64:
    """Return the sizes of the keys whose last touch is this one or a later one."""
    section, word, bit = touch >> 10, (touch >> 6) & 15, np.uint64(touch & 63)
    found: np.int64 = behind[section]
    found += small * count_bits(last[touch >> 6, 0] >> bit)
    found += (large - small) * count_bits(last[touch >> 6, 1] >> bit)
    in_section = np.int32(0)
    for each in range(after.shape[1]):
        in_section = np.int32(in_section + (in_word[section, each] & after[word, each]))
    return found + in_section
