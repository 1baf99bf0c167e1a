"""Global LFU over (layer, expert), with counts that survive eviction."""

from collections.abc import Sequence

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import StateArray, register
from tracekit.policies.fed import FedPolicy, KernelRun
from tracekit.policies.heap import Heap, look_up, make_room, new_heap
from tracekit.policies.model import Model


@register
class LFU(FedPolicy):
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

    def start(self, model: Model, budgets: np.ndarray) -> KernelRun:
        n_keys = model.n_keys
        return KernelRun(
            budgets,
            _lfu,
            state=lambda: (
                new_heap(n_keys),
                np.zeros(n_keys, np.bool_),
                np.empty(model.n_expert, np.int32),
                np.empty(n_keys, np.int32),
                np.zeros(3, np.int64),
            ),
            inputs=lambda batches: (batches.keys, batches.batch_start, batches.key_bytes),
        )


# A heap gives the entry that was touched least. Missed keys come into it after the eviction, which
# protects them; keys that were hit and come to its top are spared. `waiting` has the keys that are
# resident and not in the heap.
@kernel
def _lfu(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    heap: Heap,
    is_resident: np.ndarray,
    waiting: np.ndarray,
    gone: np.ndarray,
    totals: np.ndarray,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    size, used, n_lookups = totals  # the last: of the pieces before
    for b in range(batch_start.size - 1):
        start, stop = batch_start[b], batch_start[b + 1]
        for p in range(start, stop):
            heap.worth[keys[p]] += 1
            heap.last[keys[p]] = n_lookups + p
        n_hits, n_waiting, read = look_up(keys, start, stop, key_bytes, is_resident, hit, waiting)
        used += read
        spared_from = n_lookups + (keys.size if bypass else start)
        size, _, freed = make_room(
            heap, size, key_bytes, used - budget, spared_from, is_resident, waiting, n_waiting, gone
        )
        used -= freed
        hits[b] = n_hits
        resident[b] = used
    totals[:] = size, used, n_lookups + keys.size
