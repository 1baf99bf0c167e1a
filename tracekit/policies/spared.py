"""LRU that spares some entries as long as others can go: the kernel of several policies."""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.recency import append, empty_lists, pop_cold, unlink


# Two lists in the order of last touch, one of what is spared and one of the rest. The batch's keys
# are at the recent ends, so eviction takes from the cold end of the rest until it meets the batch,
# and then from the cold end of the spared. What is spared changes where a key is touched, which
# moves it anyway, and where the row of `ranked` does: then both lists are made anew.
@kernel
def spared_lru(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    most_hits: int,
    row_of_batch: np.ndarray,
    ranked: np.ndarray,
    share: float,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    """Replay LRU that spares entries with more hits than `most_hits`, and those that are pinned.

    Pinned is what fits into `share` of the budget, in the order of ``ranked[row_of_batch[b]]``
    (int32 [rows, n], -1 after the last one).
    """
    rest = key_bytes.size  # the sentinels of the two lists
    spared = rest + 1
    after, before = empty_lists(spared + 1)
    is_resident = np.zeros(rest, np.bool_)
    is_pinned = np.zeros(rest, np.bool_)
    n_hits_of = np.zeros(rest, np.int64)  # since it was read
    last = np.full(rest, -1, np.int64)  # the lookup that touched each key last
    row = np.int64(-1)
    used = np.int64(0)
    for b in range(batch_start.size - 1):
        start = batch_start[b]
        if row_of_batch[b] != row:
            row = row_of_batch[b]
            is_pinned[:] = False
            left = np.int64(share * budget)
            for key in ranked[row]:
                if key < 0:
                    break
                if key_bytes[key] <= left:
                    is_pinned[key] = True
                    left -= key_bytes[key]
            # Of the two coldest entries, the one that was touched before the other comes first.
            one, other = after[rest], after[spared]
            for end in (rest, spared):
                after[end] = end
                before[end] = end
            while one != rest or other != spared:
                if other == spared or (one != rest and last[one] < last[other]):
                    key, one = one, after[one]
                else:
                    key, other = other, after[other]
                is_spared = is_pinned[key] or n_hits_of[key] > most_hits
                append(after, before, spared if is_spared else rest, key)

        n_hits = np.int64(0)
        for p in range(start, batch_start[b + 1]):
            key = keys[p]
            if hit.size:
                hit[p] = is_resident[key]
            if is_resident[key]:
                n_hits += 1
                n_hits_of[key] += 1
                unlink(after, before, key)
            else:
                is_resident[key] = True
                n_hits_of[key] = 0
                used += key_bytes[key]
            last[key] = p
            is_spared = is_pinned[key] or n_hits_of[key] > most_hits
            append(after, before, spared if is_spared else rest, key)

        while used > budget:
            end = rest
            if after[rest] == rest or (last[after[rest]] >= start and not bypass):
                end = spared
                if after[spared] == spared or (last[after[spared]] >= start and not bypass):
                    break
            key = pop_cold(after, before, end)
            is_resident[key] = False
            used -= key_bytes[key]
        hits[b] = n_hits
        resident[b] = used
