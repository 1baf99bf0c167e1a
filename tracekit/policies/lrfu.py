"""LRFU: every past use counts, and counts half as much after each half-life."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import StateArray, register
from tracekit.policies.fed import FedPolicy, KernelRun, Run
from tracekit.policies.heap import Heap, look_up, make_room, new_heap, sink
from tracekit.policies.model import Model

_LEAST_HALF_LIFE = 0.01  # a batch must not outgrow a float
_EXPONENTS = 500  # of 2: when the worths have grown so far, all of them are scaled down


@dataclass(frozen=True)
class LRFUParams:
    """Parameters of `LRFU`.

    Attributes
    ----------
    half_life : float
        After how many rounds a use counts half as much. A round is as many batches as the model has
        MoE layers: one decoded token. Small: LRU. Large: LFU.
    forgets : bool
        An expert that is evicted begins again from nothing when it comes back.
    """

    half_life: float = 16.0
    forgets: bool = False

    def __post_init__(self) -> None:
        if self.half_life < _LEAST_HALF_LIFE:
            raise ValueError(f"half_life must be {_LEAST_HALF_LIFE} rounds or more")


@register
class LRFU(FedPolicy):
    """Evict the least combined recency and frequency (D. Lee et al., IEEE Trans. Computers, 2001).

    Each use of an expert counts ``(1/2)^(rounds since then / half_life)``, and an expert is worth
    the sum over all of its uses, the paper's CRF with ``F(x) = (1/2)^(λ x)``. The least worth is
    evicted; of equals, the one touched longest ago.

    Time runs in batches, all layers together: one for each of the paper's references. A round is as
    many batches as there are MoE layers, so λ is 1 / (half_life × layers). A batch uses each of its
    experts once, however many of its tokens selected it.

    The sum survives eviction, as the count of `lfu` does, unless ``forgets`` is set. An expert that
    has just come back is then worth so little that it goes before its layer runs again.

    Sizes count nothing. With ``--bypass`` an expert that was just used competes with what it is
    then worth.
    """

    name = "lrfu"
    summary = "evicts the least used expert, where older uses count less"
    Params = LRFUParams
    can_bypass = True
    params: LRFUParams

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        keys = n_layers * n_expert
        return (
            StateArray(
                "worth", "L × E", 8 * keys, "what each expert was worth when it was touched last"
            ),
            StateArray("touched", "L × E", 4 * keys, "when that was"),
        )

    def start(self, model: Model, budgets: np.ndarray) -> Run:
        n_keys = model.n_keys
        return KernelRun(
            budgets,
            _lrfu,
            state=lambda: (
                new_heap(n_keys),
                np.zeros(n_keys, np.bool_),
                np.empty(model.n_expert, np.int32),
                np.empty(n_keys, np.int32),
                np.zeros(5, np.int64),
            ),
            inputs=lambda batches: (
                batches.keys,
                batches.batch_start,
                batches.key_bytes,
                1 / (self.params.half_life * batches.n_layers),
                self.params.forgets,
            ),
        )


# All worths are halved at the same time, so their order changes only where a key is touched. So
# nothing is halved: a use counts 2^(time / half-life), and the later uses count the more. Before
# that leaves the range of floats all worths are scaled down by a power of 2, which is exact but for
# what is nearly 0. A heap gives the least worth. Missed keys come into it after the eviction, which
# protects them; keys that were hit and come to its top are spared. `waiting` has the keys that are
# resident and not in the heap.
@kernel
def _lrfu(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    halvings_a_batch: float,
    forgets: bool,
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
    size, n_scaled, used, n_batches, n_lookups = totals  # the last two: of the pieces before
    for b in range(batch_start.size - 1):
        start, stop = batch_start[b], batch_start[b + 1]
        exponent = (n_batches + b) * halvings_a_batch - n_scaled * _EXPONENTS
        if exponent >= _EXPONENTS:
            n_scaled += 1
            exponent -= _EXPONENTS
            for key in range(key_bytes.size):
                heap.worth[key] *= 2.0**-_EXPONENTS
                heap.known[key] *= 2.0**-_EXPONENTS  # as many entries at most; inf remains
            for place in range(size // 2 - 1, -1, -1):  # what became 0 is now equal
                sink(heap, size, place, heap.keys[place], heap.known[place], heap.since[place])
        counts = 2.0**exponent

        for p in range(start, stop):
            heap.worth[keys[p]] += counts
            heap.last[keys[p]] = n_lookups + p
        n_hits, n_waiting, read = look_up(keys, start, stop, key_bytes, is_resident, hit, waiting)
        used += read
        spared_from = n_lookups + (keys.size if bypass else start)
        size, n_gone, freed = make_room(
            heap, size, key_bytes, used - budget, spared_from, is_resident, waiting, n_waiting, gone
        )
        used -= freed
        if forgets:
            for key in gone[:n_gone]:
                heap.worth[key] = 0
        hits[b] = n_hits
        resident[b] = used
    totals[0], totals[1], totals[2] = size, n_scaled, used
    totals[3], totals[4] = n_batches + batch_start.size - 1, n_lookups + keys.size
