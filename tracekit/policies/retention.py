"""LRU that keeps what the next layer is predicted to want."""

from dataclasses import dataclass

import numpy as np

from tracekit.figures import Figure, Unit
from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register
from tracekit.trace.schema import DECODE

PROMOTED = Figure("promoted", Unit.COUNT, "residents that were predicted and made recent")
PROMOTED_LEGEND = "promoted: residents that were predicted, made as recent as if just used"


@dataclass(frozen=True)
class RetentionParams:
    """Parameters of `Retention`.

    Attributes
    ----------
    predictor : str
        Whose guesses are acted on.
    horizon : int
        How many MoE layers ahead it looks. At 2 the guess for the next layer is complete while this
        one runs, which is what an engine has in hand when it evicts.
    """

    predictor: str = "stale-gate"
    horizon: int = 2


@register
class Retention(Policy):
    """LRU; after a decode batch, the residents predicted for the next routed layer become recent.

    Nothing is read and nothing looked up for it, so it changes only what is evicted. The best
    prediction becomes the most recent.
    """

    name = "retention"
    summary = "LRU; residents predicted for the next layer become recent"
    Params = RetentionParams
    needs_predictor = True
    counters = (PROMOTED,)
    legend = (PROMOTED_LEGEND,)

    def simulate(self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False):
        """See `Policy.simulate`; counts `promoted`, the residents that were made recent."""
        is_decode = batches.phase == DECODE
        cells = []
        for budget in budgets:
            hits = np.empty(len(batches), np.int32)
            resident = np.empty(len(batches), np.int64)
            hit = np.empty(len(batches.keys) if per_lookup else 0, np.bool_)
            promoted = _retention(
                batches.keys,
                batches.batch_start,
                batches.key_bytes,
                is_decode,
                batches.guesses.keys,
                int(budget),
                hits,
                resident,
                hit,
            )
            cells.append(
                Cell(
                    int(budget),
                    hits,
                    resident,
                    hit=hit if per_lookup else None,
                    counters={"promoted": int(promoted)},
                )
            )
        return cells


# A doubly linked list in the order of last touch; its sentinel stands after the last key, so that
# after[end] is the coldest entry and before[end] the most recent. The batch moves its keys to the
# recent end, eviction takes from the cold end until it meets the batch, and the predicted residents
# then move to the recent end, the best of them last.
@kernel
def _retention(keys, batch_start, key_bytes, is_decode, guesses, budget, hits, resident, hit):
    end = key_bytes.size
    after = np.arange(end + 1).astype(np.int32)
    before = after.copy()
    is_resident = np.zeros(end, np.bool_)
    touched_in = np.full(end, -1, np.int64)
    used = np.int64(0)
    promoted = np.int64(0)
    for b in range(batch_start.size - 1):
        n_hits = np.int64(0)
        for p in range(batch_start[b], batch_start[b + 1]):
            key = keys[p]
            if hit.size:
                hit[p] = is_resident[key]
            if is_resident[key]:
                n_hits += 1
                after[before[key]] = after[key]
                before[after[key]] = before[key]
            else:
                is_resident[key] = True
                used += key_bytes[key]
            touched_in[key] = b
            recent = before[end]
            after[recent] = key
            before[key] = recent
            after[key] = end
            before[end] = key
        while used > budget:
            key = after[end]
            if touched_in[key] == b:
                break
            after[end] = after[key]
            before[after[key]] = end
            is_resident[key] = False
            used -= key_bytes[key]
        hits[b] = n_hits
        resident[b] = used
        if not is_decode[b]:
            continue
        for g in range(guesses.shape[1] - 1, -1, -1):
            key = guesses[b, g]
            if key >= 0 and is_resident[key]:
                promoted += 1
                after[before[key]] = after[key]
                before[after[key]] = before[key]
                recent = before[end]
                after[recent] = key
                before[key] = recent
                after[key] = end
                before[end] = key
    return promoted
