"""LRU that keeps the residents that the next layer is predicted to use."""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.figures import Figure, Unit
from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Guesses, Policy, register
from tracekit.policies.cells import cells_of
from tracekit.policies.follow_acting import run_on_follow
from tracekit.policies.recency import append, empty_lists, pop_cold, unlink
from tracekit.trace.schema import DECODE

PROMOTED = Figure("promoted", Unit.COUNT, "residents that were predicted and made recent")
PROMOTED_LEGEND = "promoted: residents that were predicted, made as recent as if just used"


@dataclass(frozen=True)
class RetentionParams:
    """Parameters of `Retention`.

    Attributes
    ----------
    predictor : str
        The name of the predictor whose guesses are used.
    horizon : int
        How many MoE layers ahead the predictor looks. At 2 the guess for the next layer is
        complete while this layer runs, so an engine has it in hand when it evicts.
    base : str
        What evicts: ``lru``, or ``follow``.
    """

    predictor: str = "stale-gate"
    horizon: int = 2
    base: str = "lru"

    def __post_init__(self) -> None:
        check_base(self.base)


@register
class Retention(Policy):
    """LRU; after a decode batch, the residents predicted for the next routed layer become recent.

    Nothing is read or looked up for this, so it changes only what is evicted. The best prediction
    becomes the most recent. With ``base=follow`` the policy `follow` evicts. To it a predicted expert
    is worth 1, as if its use were certain, from the eviction after this batch until its layer has
    run. With ``--bypass`` a batch that is larger than the budget leaves what
    fits, as in LRU.
    """

    name = "retention"
    summary = "LRU, or follow; residents predicted for the next layer become recent"
    Params = RetentionParams
    needs_predictor = True
    can_bypass = True
    counters = (PROMOTED,)
    legend = (PROMOTED_LEGEND,)
    params: RetentionParams

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        guesses = guesses_in(batches)
        is_decode = batches.phase == DECODE

        def run(cell: Cell, hit: np.ndarray) -> Cell:
            if self.params.base == "follow":
                read, ahead = np.empty(len(batches), np.int64), np.empty(len(batches), np.int32)
                wanted = np.zeros(guesses.keys.shape, np.bool_)
                *_, kept = run_on_follow(batches, guesses, wanted, 0, cell, read, ahead, hit)
                return replace(cell, counters={PROMOTED.name: int(kept)})
            promoted = _retention(
                batches.keys,
                batches.batch_start,
                batches.key_bytes,
                is_decode,
                batches.counted,
                guesses.keys,
                cell.budget_bytes,
                batches.bypass,
                cell.hits,
                cell.resident_bytes,
                hit,
            )
            return replace(cell, counters={PROMOTED.name: int(promoted)})

        return cells_of(batches, budgets, per_lookup, run)


def check_base(base: str) -> None:
    """Refuse, with a ValueError, a policy that retention and prefetch cannot stand on."""
    if base not in ("lru", "follow"):
        raise ValueError("base must be lru or follow")


def guesses_in(batches: Batches) -> Guesses:
    """Return the guesses in `batches`, which every policy with ``needs_predictor`` is given.

    Raises
    ------
    ValueError
        There are none.
    """
    if batches.guesses is None:
        raise ValueError("a policy that needs a predictor takes batches with its guesses")
    return batches.guesses


# One list in the order of last touch, with its sentinel after the last key. The batch moves its
# keys to the recent end, and eviction takes entries from the cold end until it meets the batch.
# Then the predicted residents move to the recent end, the best prediction last.
@kernel
def _retention(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    is_decode: np.ndarray,
    counted: np.ndarray,
    guesses: np.ndarray,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> np.int64:
    end = key_bytes.size
    after, before = empty_lists(end + 1)
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
                unlink(after, before, key)
            else:
                is_resident[key] = True
                used += key_bytes[key]
            touched_in[key] = b
            append(after, before, end, key)
        while used > budget and (bypass or touched_in[after[end]] != b):
            key = pop_cold(after, before, end)
            is_resident[key] = False
            used -= key_bytes[key]
        hits[b] = n_hits
        resident[b] = used
        if not is_decode[b]:
            continue
        for g in range(guesses.shape[1] - 1, -1, -1):
            key = guesses[b, g]
            if key >= 0 and is_resident[key]:
                promoted += np.int64(counted[b])
                unlink(after, before, key)
                append(after, before, end, key)
    return promoted
