"""Global LFU over (layer, expert), with counts that survive eviction."""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register


@register
class LFU(Policy):
    """Evict the entry with the fewest touches so far, of those the one touched longest ago.

    A batch touches each of its experts once, however many of its tokens selected it, and the count
    survives eviction: an expert that comes back resumes where it was.
    """

    name = "lfu"
    summary = "evicts the expert with the fewest touches so far, ties least recent"

    def simulate(self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False):
        """See `Policy.simulate`."""
        most_touches = int(np.bincount(batches.layer, minlength=1).max())
        cells = []
        for budget in budgets:
            hits = np.empty(len(batches), np.int32)
            resident = np.empty(len(batches), np.int64)
            hit = np.empty(len(batches.keys) if per_lookup else 0, np.bool_)
            _lfu(
                batches.keys,
                batches.batch_start,
                batches.key_bytes,
                most_touches,
                int(budget),
                hits,
                resident,
                hit,
            )
            cells.append(Cell(int(budget), hits, resident, hit=hit if per_lookup else None))
        return cells


# One doubly linked list for each number of touches, in the order of last touch: the entry to evict
# is the head of the first list that is not empty. Entries of the batch are taken out of their lists
# before the eviction, which protects them, and put at the end of the next list after it. Counting
# the entries in every 64 lists lets the search for the first one leap over empty stretches.
@kernel
def _lfu(keys, batch_start, key_bytes, most_touches, budget, hits, resident, hit):
    n_keys = key_bytes.size
    head = n_keys  # the list of f touches has its sentinel at head + f
    after = np.arange(n_keys + most_touches + 1).astype(np.int32)
    before = after.copy()
    touches = np.zeros(n_keys, np.int32)
    is_resident = np.zeros(n_keys, np.bool_)
    in_stretch = np.zeros((most_touches >> 6) + 1, np.int32)
    first = np.int64(0)  # no list before this one has entries
    listed = np.int64(0)
    used = np.int64(0)
    for b in range(batch_start.size - 1):
        start = batch_start[b]
        stop = batch_start[b + 1]
        n_hits = np.int64(0)
        for p in range(start, stop):
            key = keys[p]
            if hit.size:
                hit[p] = is_resident[key]
            if is_resident[key]:
                n_hits += 1
                after[before[key]] = after[key]
                before[after[key]] = before[key]
                in_stretch[touches[key] >> 6] -= 1
            else:
                is_resident[key] = True
        listed -= n_hits
        if n_hits < stop - start:
            used += (stop - start - n_hits) * key_bytes[keys[start]]

        while used > budget and listed > 0:
            while after[head + first] == head + first:
                if in_stretch[first >> 6] == 0:
                    first = ((first >> 6) + 1) << 6
                else:
                    first += 1
            key = after[head + first]
            after[head + first] = after[key]
            before[after[key]] = head + first
            in_stretch[first >> 6] -= 1
            is_resident[key] = False
            used -= key_bytes[key]
            listed -= 1

        for p in range(start, stop):
            key = keys[p]
            touches[key] += 1
            f = np.int64(touches[key])
            after[before[head + f]] = key
            before[key] = before[head + f]
            after[key] = head + f
            before[head + f] = key
            in_stretch[f >> 6] += 1
            first = min(first, f)
        listed += stop - start
        hits[b] = n_hits
        resident[b] = used
