"""The hits and peaks of LRU at any number of budgets in one pass over a run, whatever the sizes.

After each batch, LRU holds what was touched last, as much as its budget allows. So it holds the end of
a list of all keys in the order of last touch, and only where that end begins differs between budgets.
Where all experts have one size, `stack` is faster; where there are many budgets, `distances` goes on as
soon as their peaks are known. Nothing here knows a policy.
"""

import numpy as np

from tracekit.kernels import Whole, kernel
from tracekit.policies.batches import Batches
from tracekit.policies.distances import Touched, go_on, suits

_SLOTS_A_KEY = 4
_BLOCK = 16  # slots; the kernel shifts by 4
_WINDOW = 1024  # batches
_FEW = 24  # budgets up to which this pass is faster than that of `distances`


def hits_and_peaks_at(batches: Batches, budgets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what LRU did at each of `budgets`.

    Parameters
    ----------
    batches : Batches
    budgets : int64 [C]
        In bytes.

    Returns
    -------
    hits : int64 [C, 3, L]
        By the kind of the batch (`Batches.kind`) and its layer.
    peaks : int64 [C, 2]
        The most bytes that were within the budget after a batch of each kind of `Batches.peak_kind`
        from 1 on, of those batches until which more than the budget was looked up; 0: there are none.
    """
    ascending, place = np.unique(budgets, return_inverse=True)
    n_budgets = len(ascending)
    n_blocks = -(-_SLOTS_A_KEY * batches.n_keys // _BLOCK)
    slot_of = np.full(batches.n_keys, -1, np.int32)
    key_at = np.zeros(n_blocks * _BLOCK, np.int32)
    rising = np.tile(np.arange(n_budgets), (2, 1))
    n_rising = np.full(2, n_budgets)
    first = np.full(1 << n_budgets.bit_length(), -1, np.int32)
    found = np.zeros((3, len(batches.expert_bytes), n_budgets + 1), np.int64)
    peaks = np.zeros((n_budgets, 2), np.int64)
    # A sum of sizes is a multiple of what divides all of them.
    unit = max(1, int(np.gcd.reduce(batches.expert_bytes)))
    batch, n_slots = _hits(
        batches.keys,
        batches.batch_start,
        batches.layer,
        batches.kind,
        batches.peak_kind,
        batches.key_bytes,
        ascending,
        ascending // unit * unit,
        batches.bypass,
        n_budgets > _FEW and suits(batches),
        slot_of,
        key_at,
        np.zeros(n_blocks * _BLOCK, np.int64),
        np.zeros(n_blocks, np.int64),
        first,
        np.zeros(n_budgets, np.int64),
        np.zeros(n_budgets + 1, np.int64),
        rising,
        n_rising,
        found,
        peaks,
    )
    if batch < len(batches):
        taken = key_at[:n_slots]
        keys = taken[slot_of[taken] == np.arange(n_slots)]
        n_last = int(batches.lookups[batch - 1])
        touched = Touched(batch, keys, n_last, rising, n_rising)
        go_on(batches, ascending, touched, found, peaks)
    hits = np.moveaxis(found.cumsum(axis=2)[:, :, :-1], 2, 0)
    return hits[place], peaks[place]


# The list is a row of slots: a touch takes the next slot and leaves the key's former one empty. The
# slots form blocks, each with the bytes of its keys; an empty slot has none. Of each budget, `first` is
# the block in which its end of the list begins: the blocks behind it, of `behind` bytes, are in the
# cache, and those before it are not. Only of a key in that block itself do its neighbours have to be
# looked at. A batch that alone is larger than the budget is in the cache too, unless `bypass`.
#
# A block that is in the cache may leave it and never comes back, so `first` only grows. When all slots
# are taken, those in use move down and everything is summed anew.
#
# What is resident of the block in which the end begins is looked up only for budgets whose peak may
# still rise (`rising`) and that missed since (`missed`), as nothing else changes what is resident: soon
# almost all have reached the most that sums of sizes allow. When `distances` finds the others with little
# work, the pass may end.
@kernel
def _hits(
    keys: np.ndarray,
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    kind: np.ndarray,
    peak_kind: np.ndarray,
    key_bytes: np.ndarray,
    budgets: np.ndarray,
    most: np.ndarray,
    bypass: bool,
    may_end: bool,
    slot_of: np.ndarray,
    key_at: np.ndarray,
    slot_bytes: np.ndarray,
    block_bytes: np.ndarray,
    first: np.ndarray,
    behind: np.ndarray,
    moved: np.ndarray,
    rising: np.ndarray,
    n_rising: np.ndarray,
    found: np.ndarray,
    peaks: np.ndarray,
) -> tuple[Whole, Whole]:
    n_budgets = np.int64(budgets.size)
    n_slots = np.int64(0)  # taken so far
    before = np.int64(0)  # the first slot of the batch before
    missed = np.zeros(2, np.int64)  # of each side: which ranks did since it was looked at
    looked_at = np.int64(0)  # peaks, in this window
    for b in range(batch_layer.size):
        start, stop = np.int64(batch_start[b]), np.int64(batch_start[b + 1])
        if n_slots + stop - start > key_at.size:
            block_bytes[:] = 0
            n_used = np.int64(0)
            for old in range(n_slots):
                if old == before:
                    before = n_used
                key = key_at[old]
                if slot_of[key] == old:
                    key_at[n_used] = key
                    slot_of[key] = n_used
                    slot_bytes[n_used] = key_bytes[key]
                    block_bytes[n_used >> 4] += key_bytes[key]
                    n_used += 1
            slot_bytes[n_used:] = 0
            before = np.int64(min(before, n_used))
            n_slots = n_used
            block = np.int64((n_slots - 1) >> 4)
            total = np.int64(0)
            for c in range(n_budgets):
                while block >= 0 and total + block_bytes[block] <= budgets[c]:
                    total += block_bytes[block]
                    block -= 1
                first[c] = block
                behind[c] = total

        least_hit = np.int64(0)  # this rank and those above it did not miss
        for p in range(start, stop):
            slot = np.int64(slot_of[keys[p]])
            least = n_budgets  # the least budget that has the key
            if slot >= 0:
                block = np.int64(slot >> 4)
                least = np.int64(0)
                step = np.int64(first.size >> 1)
                while step > 0:  # without a jump, which a processor would guess wrong
                    least += step * (first[least + step - 1] >= block)
                    step >>= 1
                moved[least] += key_bytes[keys[p]]
                least_hit = max(least_hit, least)
                if slot >= before and not bypass:
                    least = np.int64(0)
                elif least > 0 and first[least - 1] == block:
                    from_slot = np.int64(0)
                    for i in range(slot, (block + 1) << 4):
                        from_slot += slot_bytes[i]
                    while (
                        least > 0
                        and first[least - 1] == block
                        and behind[least - 1] + from_slot <= budgets[least - 1]
                    ):
                        least -= 1
            else:
                least_hit = n_budgets
            found[kind[b], batch_layer[b], least] += 1

        before = n_slots
        n_bytes = key_bytes[keys[start]] if stop > start else np.int64(0)
        for p in range(start, stop):
            key = keys[p]
            if slot_of[key] >= 0:
                slot_bytes[slot_of[key]] = 0
                block_bytes[slot_of[key] >> 4] -= n_bytes
            slot_of[key] = n_slots
            key_at[n_slots] = key
            slot_bytes[n_slots] = n_bytes
            block_bytes[n_slots >> 4] += n_bytes
            n_slots += 1
        change = (stop - start) * n_bytes
        for c in range(n_budgets):
            change -= moved[c]
            moved[c] = 0
            behind[c] += change
        for c in range(n_budgets):
            if first[c] < before >> 4:
                break
            behind[c] = 0  # not all of the batch is behind the block
            for later in range(first[c] + 1, ((n_slots - 1) >> 4) + 1):
                behind[c] += block_bytes[later]
        for c in range(n_budgets):
            while behind[c] > budgets[c]:
                first[c] += 1
                behind[c] -= block_bytes[first[c]]
        moved[n_budgets] = 0

        for each in range(2):
            missed[each] = max(missed[each], least_hit)
        side = np.int64(peak_kind[b]) - 1
        place = np.int64(0)
        while side >= 0 and place < n_rising[side]:
            rank = rising[side, place]
            block = np.int64(first[rank])
            if block < 0 or rank >= missed[side]:
                break  # this budget and all larger ones hold all that was seen, or what they held
            size = behind[rank]
            if size + block_bytes[block] > peaks[rank, side]:
                slot = np.int64((block << 4) + 15)
                while (
                    size + slot_bytes[slot] <= budgets[rank]
                ):  # not all of the block is in the cache
                    size += slot_bytes[slot]
                    slot -= 1
                peaks[rank, side] = max(peaks[rank, side], size)
            place += 1
            if peaks[rank, side] == most[rank]:
                n_rising[side] -= 1
                place -= 1
                for later in range(place, n_rising[side]):
                    rising[side, later] = rising[side, later + 1]
        if side >= 0:
            missed[side] = 0
        looked_at += place
        if may_end and b % _WINDOW == _WINDOW - 1:
            if 8 * looked_at <= n_budgets * _WINDOW and 2 * n_rising.min() <= n_budgets:
                return b + 1, n_slots
            looked_at = np.int64(0)
    return batch_layer.size, n_slots
