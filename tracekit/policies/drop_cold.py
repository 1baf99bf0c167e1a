"""LRU that does not read a missing expert of little weight: faster, and not the same output."""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register
from tracekit.policies.lossy import (
    LOSSY_COUNTERS,
    LOSSY_LEGEND,
    lossy_cell,
    normalised_weights,
)
from tracekit.policies.lru import LRURun
from tracekit.policies.recency import append, empty_lists, pop_cold, unlink
from tracekit.trace.errors import TraceError
from tracekit.trace.schema import DECODE


@dataclass(frozen=True)
class DropColdParams:
    """Parameters of `DropCold`.

    Attributes
    ----------
    frac : float
        F: a missing expert is dropped if its weight is below F / k, where 1 / k is the mean.
    static : bool
        Count what would be dropped of the misses of plain LRU, as if dropping did not change what
        is cached. Published figures are often made in this way.
    """

    frac: float = 1.0
    static: bool = False

    def __post_init__(self) -> None:
        if not self.frac >= 0:
            raise ValueError("frac must be 0 or more")


@register
class DropCold(Policy):
    """LRU; a missing expert of a decoded token weighted below F / k is not read.

    Weights are normalised to sum 1 in each routing, and the heaviest expert is never dropped. A
    dropped expert is neither looked up nor cached, so dropping changes what is cached later.
    """

    name = "drop-cold"
    summary = "LRU; a missing expert weighted below F / k is not read (changes the output)"
    Params = DropColdParams
    lossy = True
    can_bypass = True
    counters = LOSSY_COUNTERS
    legend = (LOSSY_LEGEND,)
    params: DropColdParams

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        weight = normalised_weights(batches)
        droppable = self._droppable(batches, weight)
        cells = []
        for lru in LRURun(batches, budgets).feed(batches, per_lookup=True):
            if self.params.static:
                resident = lru.resident_bytes
                hit = np.asarray(lru.hit)
                dropped = droppable & ~hit
            else:
                resident = np.empty(len(batches), np.int64)
                hit = np.zeros(len(batches.keys), np.bool_)
                dropped = np.zeros(len(batches.keys), np.bool_)
                _drop_cold(
                    batches.keys,
                    batches.batch_start,
                    batches.key_bytes,
                    droppable,
                    lru.budget_bytes,
                    batches.bypass,
                    resident,
                    hit,
                    dropped,
                )
            cells.append(lossy_cell(batches, lru, hit, dropped, resident, weight, per_lookup))
        return cells

    def _droppable(self, batches: Batches, weight: np.ndarray) -> np.ndarray:
        """Return which keys are dropped if they are missing, bool [N]."""
        batch = np.repeat(np.arange(len(batches)), batches.lookups)
        decode = batches.phase[batch] == DECODE
        unknown = np.isnan(weight)
        if unknown.any():
            b = batch[unknown.argmax()]
            raise TraceError(
                "drop-cold needs the weight of every expert of a decoded token, and the trace does "
                f"not have it in turn {batches.turn[b]}, step {batches.step[b]}, layer "
                f"{batches.layer_ids[batches.layer[b]]}; leave drop-cold out, or record again."
            )
        droppable = np.asarray(decode & (weight < self.params.frac / batches.top_k))
        filled = batches.lookups > 0
        heaviest = np.zeros(len(batches))
        heaviest[filled] = np.maximum.reduceat(weight, batches.batch_start[:-1][filled])
        # Of equals, the first in slot order is the heaviest.
        candidates = np.flatnonzero(weight == heaviest[batch])
        first = np.flatnonzero(np.diff(batch[candidates], prepend=-1))
        droppable[candidates[first]] = False
        return droppable


# One list in the order of last touch, as in `retention`. A missing key that may be dropped is
# passed over, as if the token had not selected it.
@kernel
def _drop_cold(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    droppable: np.ndarray,
    budget: int,
    bypass: bool,
    resident: np.ndarray,
    hit: np.ndarray,
    dropped: np.ndarray,
) -> None:
    end = key_bytes.size
    after, before = empty_lists(end + 1)
    is_resident = np.zeros(end, np.bool_)
    touched_in = np.full(end, -1, np.int64)
    used = np.int64(0)
    for b in range(batch_start.size - 1):
        for p in range(batch_start[b], batch_start[b + 1]):
            key = keys[p]
            hit[p] = is_resident[key]
            if is_resident[key]:
                unlink(after, before, key)
            elif droppable[p]:
                dropped[p] = True
                continue
            else:
                is_resident[key] = True
                used += key_bytes[key]
            touched_in[key] = b
            append(after, before, end, key)
        while used > budget and (bypass or touched_in[after[end]] != b):
            key = pop_cold(after, before, end)
            is_resident[key] = False
            used -= key_bytes[key]
        resident[b] = used
