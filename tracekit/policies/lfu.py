"""Global LFU over (layer, expert), with counts that survive eviction."""

from collections.abc import Sequence

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, StateArray, register
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.recency import append, empty_lists, pop_cold, unlink


@register
class LFU(Policy):
    """Evict the entry with the fewest touches so far; of equals, the one touched longest ago.

    A batch touches each of its experts once, however many of its tokens selected it. The count
    survives eviction: an expert that comes back continues with the count it had. With
    ``--bypass`` an expert that was just used competes with the count that it then has: one that was
    used for the first time is dropped at once, unless another was used once only.
    """

    name = "lfu"
    summary = "evicts the expert with the fewest touches so far, ties least recent"
    can_bypass = True

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        return (StateArray("touches", "L × E", 4 * n_layers * n_expert, "how often each was used"),)

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        most_touches = int(np.bincount(batches.layer, minlength=1).max())

        return cells_of_kernel(
            batches,
            budgets,
            per_lookup,
            _lfu,
            batches.keys,
            batches.batch_start,
            batches.key_bytes,
            most_touches,
        )


# One list for each number of touches, in the order of last touch: the victim is the first entry of
# the first list that is not empty. Entries of the batch leave their lists before the eviction,
# which protects them, and go to the recent end of the next list after it; or before it, if they are
# not protected. The number of entries in every 64 lists lets the search for the first one skip
# stretches of empty lists.
@kernel
def _lfu(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    most_touches: int,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    n_keys = key_bytes.size
    head = n_keys  # the list of f touches has its sentinel at head + f
    after, before = empty_lists(n_keys + most_touches + 1)
    touches = np.zeros(n_keys, np.int32)
    is_resident = np.zeros(n_keys, np.bool_)
    in_stretch = np.zeros((most_touches >> 6) + 1, np.int32)
    first = np.int64(0)  # no list before this one has entries
    n_linked = np.int64(0)  # entries in all lists
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
                unlink(after, before, key)
                in_stretch[touches[key] >> 6] -= 1
            else:
                is_resident[key] = True
        n_linked -= n_hits
        if n_hits < stop - start:
            used += (stop - start - n_hits) * key_bytes[keys[start]]

        for late in range(2):
            if (late == 0) == bypass:
                for p in range(start, stop):
                    key = keys[p]
                    touches[key] += 1
                    f = np.int64(touches[key])
                    append(after, before, head + f, key)
                    in_stretch[f >> 6] += 1
                    first = min(first, f)
                n_linked += stop - start
                continue
            while used > budget and n_linked > 0:
                while after[head + first] == head + first:
                    if in_stretch[first >> 6] == 0:
                        first = ((first >> 6) + 1) << 6
                    else:
                        first += 1
                key = pop_cold(after, before, head + first)
                in_stretch[first >> 6] -= 1
                is_resident[key] = False
                used -= key_bytes[key]
                n_linked -= 1
        hits[b] = n_hits
        resident[b] = used
