"""LRU with a guess of the next layer's experts in hand: it keeps them, and may read them ahead.

In go the batches with their guesses; out come cells and totals. The policies `retention` and `prefetch`
run on this, or on `follow_acting`, which does the same for `follow`.
"""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Guesses
from tracekit.policies.recency import append, append_cold, empty_lists, pop_cold, unlink
from tracekit.trace.schema import DECODE


def run_on_lru(
    batches: Batches,
    guesses: Guesses,
    wanted: np.ndarray,
    spec_max: int,
    cell: Cell,
    read_bytes: np.ndarray,
    prefetched: np.ndarray,
    hit: np.ndarray,
) -> tuple[int, ...]:
    """Fill `cell` and the arrays for its budget; parameters and result as of `run_on_follow`."""
    totals = _lru_acting(
        batches.keys,
        batches.batch_start,
        batches.key_bytes,
        batches.phase == DECODE,
        batches.counted,
        guesses.keys,
        wanted,
        spec_max,
        cell.budget_bytes,
        batches.bypass,
        cell.hits,
        cell.resident_bytes,
        read_bytes,
        prefetched,
        hit,
    )
    return tuple(map(int, totals))


# One list in the order of last touch, with its sentinel after the last key. The batch moves its keys
# to the recent end, and eviction takes entries from the cold end until it meets the batch. Then the
# predicted residents move to the recent end, the best prediction last. Of an entry that was read
# ahead and not hit since it is known after which batch that was. To make room, the walk from the cold end first only adds up the bytes that it may take,
# leaving out the batch's keys and the predicted ones; it evicts if they suffice. The best prediction
# is read first, so the next one stands colder than it.
@kernel
def _lru_acting(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    is_decode: np.ndarray,
    counted: np.ndarray,
    guesses: np.ndarray,
    wanted: np.ndarray,
    spec_max: int,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    read: np.ndarray,
    prefetched: np.ndarray,
    hit: np.ndarray,
) -> tuple[np.int64, np.int64, np.int64, np.int64, np.int64, np.int64, np.int64, np.int64]:
    end = key_bytes.size
    after, before = empty_lists(end + 1)
    is_resident = np.zeros(end, np.bool_)
    read_after = np.full(end, -1, np.int64)
    protected_in = np.full(end, -1, np.int64)
    used = np.int64(0)
    demand = np.int64(0)
    useful_bytes = np.int64(0)
    reads = np.int64(0)
    useful = np.int64(0)
    late = np.int64(0)
    skipped = np.int64(0)
    evicted = np.int64(0)
    promoted = np.int64(0)
    for b in range(batch_start.size - 1):
        n_hits = np.int64(0)
        n_ahead = np.int64(0)
        bytes_read = np.int64(0)
        for p in range(batch_start[b], batch_start[b + 1]):
            key = keys[p]
            if hit.size:
                hit[p] = is_resident[key]
            if is_resident[key]:
                n_hits += 1
                unlink(after, before, key)
                if read_after[key] >= 0:
                    n_ahead += 1
                    # What was read before anything counts is not among the bytes that count.
                    if counted[read_after[key]]:
                        useful += 1
                        useful_bytes += key_bytes[key]
                    if counted[b] and (read_after[key] != b - 1 or not is_decode[b]):
                        late += 1
                    read_after[key] = -1
            else:
                is_resident[key] = True
                used += key_bytes[key]
                bytes_read += key_bytes[key]
            protected_in[key] = b
            append(after, before, end, key)
        count = np.int64(counted[b])
        demand += count * bytes_read
        while used > budget and (bypass or protected_in[after[end]] != b):
            key = pop_cold(after, before, end)
            is_resident[key] = False
            read_after[key] = -1
            used -= key_bytes[key]
        hits[b] = n_hits
        prefetched[b] = n_ahead
        if is_decode[b]:
            for g in range(guesses.shape[1] - 1, -1, -1):
                key = guesses[b, g]
                if key < 0:
                    continue
                protected_in[key] = b
                if is_resident[key]:
                    promoted += count
                    unlink(after, before, key)
                    append(after, before, end, key)
            left = spec_max
            for g in range(guesses.shape[1]):
                key = guesses[b, g]
                if left == 0:
                    break
                if key < 0 or is_resident[key] or not wanted[b, g]:
                    continue
                left -= 1
                excess = used + key_bytes[key] - budget
                room = np.int64(0)
                victim = after[end]
                while room < excess and victim != end:
                    if protected_in[victim] != b:
                        room += key_bytes[victim]
                    victim = after[victim]
                if room < excess:
                    skipped += count
                    continue
                victim = after[end]
                while excess > 0:
                    following = after[victim]
                    if protected_in[victim] != b:
                        unlink(after, before, victim)
                        is_resident[victim] = False
                        read_after[victim] = -1
                        used -= key_bytes[victim]
                        excess -= key_bytes[victim]
                        evicted += count
                    victim = following
                append_cold(after, before, end, key)
                is_resident[key] = True
                read_after[key] = b
                used += key_bytes[key]
                bytes_read += key_bytes[key]
                reads += count
        resident[b] = used
        read[b] = bytes_read
    return demand, useful_bytes, reads, useful, late, skipped, evicted, promoted
