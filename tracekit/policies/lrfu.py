"""LRFU: every past use counts, and counts half as much after each half-life."""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.heap import push, sink

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
class LRFU(Policy):
    """Evict the least combined recency and frequency (D. Lee et al., IEEE Trans. Computers, 2001).

    Each use of an expert counts ``(1/2)^(rounds since then / half_life)``, and an expert is worth
    the sum over all of its uses, the paper's CRF with ``F(x) = (1/2)^(λ x)``. The least worth is
    evicted; of equals, the one touched longest ago.

    Time runs in batches, all layers together: one for each of the paper's references. A round is as
    many batches as there are MoE layers, so λ is 1 / (half_life × layers). A batch uses each of its
    experts once, however many of its tokens selected it.

    The paper defines the sum over all past uses, and its program keeps it only while a block is
    resident. Here it survives eviction, as in `lfu`, unless ``forgets`` is set. An expert that has
    just come back is then worth so little that it goes before its layer runs again.

    Sizes count nothing. With ``--bypass`` an expert that was just used competes with what it is
    then worth.
    """

    name = "lrfu"
    summary = "evicts the least used expert, where older uses count less"
    Params = LRFUParams
    can_bypass = True
    params: LRFUParams

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        return cells_of_kernel(
            batches,
            budgets,
            per_lookup,
            _lrfu,
            batches.keys,
            batches.batch_start,
            batches.key_bytes,
            batches.n_expert,
            1 / (self.params.half_life * len(batches.expert_bytes)),
            self.params.forgets,
        )


# All worths are halved at the same time, so their order changes only where a key is touched. So
# nothing is halved: a use counts 2^(time / half-life), and the later uses count the more. Before
# that leaves the range of floats all worths are scaled down by a power of 2, which is exact but for
# what is nearly 0. A heap gives the least worth. Missed keys are in the heap only after the eviction,
# which protects them; a key that was hit and comes to the top is laid aside until then.
@kernel
def _lrfu(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    n_expert: int,
    halvings_a_batch: float,
    forgets: bool,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    n_keys = key_bytes.size
    heap = np.empty(n_keys, np.int32)
    spot = np.full(n_keys, -1, np.int32)  # -1: not resident
    worth = np.zeros(n_keys, np.float64)
    last = np.full(n_keys, -1, np.int64)  # the lookup that touched each key last
    aside = np.empty(n_expert, np.int32)
    size = np.int64(0)
    n_scaled = np.int64(0)
    used = np.int64(0)
    for b in range(batch_start.size - 1):
        start = batch_start[b]
        exponent = b * halvings_a_batch - n_scaled * _EXPONENTS
        if exponent >= _EXPONENTS:
            n_scaled += 1
            exponent -= _EXPONENTS
            worth *= 2.0**-_EXPONENTS
            for place in range(size // 2 - 1, -1, -1):  # what became 0 is now equal
                sink(heap, spot, worth, last, size, place)
        counts = 2.0**exponent

        n_hits = np.int64(0)
        n_aside = np.int64(0)
        for p in range(start, batch_start[b + 1]):
            key = keys[p]
            is_hit = spot[key] >= 0
            if hit.size:
                hit[p] = is_hit
            worth[key] += counts
            last[key] = p
            if is_hit:
                n_hits += 1
                sink(heap, spot, worth, last, size, spot[key])
            else:
                used += key_bytes[key]
                if bypass:
                    push(heap, spot, worth, last, size, key)
                    size += 1
                else:
                    aside[n_aside] = key
                    n_aside += 1

        while used > budget and size > 0:
            key = heap[0]
            size -= 1
            if size > 0:
                heap[0] = heap[size]
                sink(heap, spot, worth, last, size, 0)
            if last[key] >= start and not bypass:
                aside[n_aside] = key
                n_aside += 1
                continue
            spot[key] = -1
            used -= key_bytes[key]
            if forgets:
                worth[key] = 0
        for i in range(n_aside):
            push(heap, spot, worth, last, size, aside[i])
            size += 1
        hits[b] = n_hits
        resident[b] = used
