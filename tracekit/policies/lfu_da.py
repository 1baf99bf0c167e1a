"""LFU with dynamic aging: a count from long ago is passed by the age of the cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, StateArray, register
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.heap import empty_heap, look_up, make_room


@dataclass(frozen=True)
class LFUDAParams:
    """Parameters of `LFUDA`.

    Attributes
    ----------
    forgets : bool
        An expert that is evicted begins to count again from 0 when it comes back.
    """

    forgets: bool = False


@register
class LFUDA(Policy):
    """LFU with dynamic aging (M. Arlitt et al., ACM SIGMETRICS Perf. Eval. Review 27(4), 2000).

    An expert has the key ``K = F + L``: F counts its touches, and L is the age of the cache, the
    greatest key that was ever evicted. Both are taken when the expert is touched. The least key is
    evicted; of equals, the one touched longest ago. So experts that were hot once are passed in time
    by those that are touched now.

    The paper's cost C is 1 for every expert, whatever its size: that makes it the policy for hit
    rates. A batch touches each of its experts once, however many of its tokens selected it, all of
    them at the age before the batch. Without a batch that is spared, what is evicted has the least
    key of all, and the age is the last evicted key, as in the paper. F survives eviction, as in
    `lfu`, unless ``forgets`` is set; a web cache, which cannot remember every object, forgets. With
    ``--bypass`` an expert that was just used competes with the key that it then has.
    """

    name = "lfu-da"
    summary = "LFU, where each touch adds the age of the cache: the greatest key evicted"
    Params = LFUDAParams
    can_bypass = True
    params: LFUDAParams

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        keys = n_layers * n_expert
        return (
            StateArray("touches", "L × E", 4 * keys, "how often each expert was touched"),
            StateArray("key", "L × E", 4 * keys, "K of each expert"),
        )

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        return cells_of_kernel(
            batches,
            budgets,
            per_lookup,
            _lfu_da,
            batches.keys,
            batches.batch_start,
            batches.key_bytes,
            batches.n_expert,
            self.params.forgets,
        )


# A heap gives the least key. Missed experts come into it after the eviction, which protects them;
# those that were hit and come to its top are spared.
@kernel
def _lfu_da(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    n_expert: int,
    forgets: bool,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    heap = empty_heap(key_bytes.size)
    is_resident = np.zeros(key_bytes.size, np.bool_)
    touches = np.zeros(key_bytes.size, np.int64)
    waiting = np.empty(n_expert, np.int32)  # resident, and not in the heap
    gone = np.empty(key_bytes.size, np.int32)
    size = np.int64(0)
    age = 0.0
    used = np.int64(0)
    for b in range(batch_start.size - 1):
        start, stop = batch_start[b], batch_start[b + 1]
        for p in range(start, stop):
            key = keys[p]
            touches[key] += 1
            heap.worth[key] = touches[key] + age
            heap.last[key] = p
        n_hits, n_waiting, read = look_up(keys, start, stop, key_bytes, is_resident, hit, waiting)
        used += read
        spared_from = keys.size if bypass else start
        size, n_gone, freed = make_room(
            heap, size, key_bytes, used - budget, spared_from, is_resident, waiting, n_waiting, gone
        )
        used -= freed
        for key in gone[:n_gone]:
            age = max(age, heap.worth[key])
            if forgets:
                touches[key] = 0
        hits[b] = n_hits
        resident[b] = used
