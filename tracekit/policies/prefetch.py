"""LRU that reads ahead the experts that the next layer is predicted to use."""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.figures import Figure, Unit
from tracekit.policies.base import Batches, Cell, Guesses, Policy, register
from tracekit.policies.cells import cells_of
from tracekit.policies.retention import BASES, PROMOTED, PROMOTED_LEGEND, check_base, guesses_in
from tracekit.trace.errors import UsageError

# The counter of reads ahead that lie outside the class of the bound.
LATE = "speculative_late"


@dataclass(frozen=True)
class PrefetchParams:
    """Parameters of `Prefetch`.

    Attributes
    ----------
    predictor : str
        The name of the predictor whose guesses are used; ``oracle`` for perfect ones.
    horizon : int
        How many MoE layers ahead the predictor looks.
    spec_max : int
        The most experts that are read ahead after a batch.
    drop_frac : float
        F: a predicted expert with a predicted weight below F / k is not read ahead, because
        drop-cold at F would not read it either. The best prediction is always read. 0: no limit.
    base : str
        What evicts and makes room: ``lru``, or ``follow``.
    """

    predictor: str = "stale-gate"
    horizon: int = 2
    spec_max: int = 2
    drop_frac: float = 0.0
    base: str = "lru"

    def __post_init__(self) -> None:
        check_base(self.base)
        if self.spec_max < 0:
            raise ValueError("spec_max must be 0 or more")
        if not self.drop_frac >= 0:
            raise ValueError("drop_frac must be 0 or more")


@register
class Prefetch(Policy):
    """Retention, and predicted experts that are missing are read into the cold end.

    After a decode batch's eviction and promotion, at most `spec_max` of the first k predicted
    experts that are missing are read, the best first. A read ahead never takes the place of what
    is in use: room is made from the coldest entries that neither the batch touched nor the
    prediction names. If they do not suffice, nothing is evicted and the read is skipped. A read
    ahead was useful if the expert is hit before it is evicted, otherwise it was wasted:
    ``read_bytes = demand_bytes + speculative_useful_bytes + speculative_wasted_bytes``.

    With ``base=follow`` the policy `follow` evicts, and room is made from what is worth least to it. A
    predicted expert is worth 1, as if its use were certain, until its layer has run.

    With guesses that come true it is of the class that `BoundAhead` bounds. A wrong guess that stays
    and is hit later (``speculative_late``) lies outside that class.

    With ``--bypass`` a batch that is larger than the budget leaves what fits, as in LRU. Reads ahead
    make room as without it, and are charged to the cache.
    """

    name = "prefetch"
    summary = "retention, and missing experts predicted for the next layer are read ahead"
    Params = PrefetchParams
    needs_predictor = True
    can_bypass = True
    speculative = True
    counters = (
        Figure("demand_bytes", Unit.BYTES, "bytes read for lookups that missed"),
        Figure("speculative_useful_bytes", Unit.BYTES, "bytes read ahead and hit before eviction"),
        Figure("speculative_reads", Unit.COUNT, "experts read ahead"),
        Figure("speculative_useful", Unit.COUNT, "experts read ahead and hit before eviction"),
        Figure(LATE, Unit.COUNT, "useful ones that were wrong at first: no hit of the next load"),
        Figure("speculative_skipped", Unit.COUNT, "reads ahead that found no room"),
        Figure("evicted_by_speculation", Unit.COUNT, "residents that made room for reads ahead"),
        PROMOTED,
        Figure("speculative_wasted_bytes", Unit.BYTES, "bytes read ahead for nothing"),
        Figure("useful_share", Unit.FRACTION, "experts read ahead that were useful", True),
    )
    legend = (
        "reading ahead: every such read is taken to arrive in time; useful: hit before it was "
        "evicted; late: useful, but not hit by the next load; skipped: no room; evicted by "
        "speculation: residents that made room; demand decode: what decoded tokens still wait for",
        PROMOTED_LEGEND,
    )
    params: PrefetchParams

    @property
    def reads_ahead(self) -> int:
        return self.params.spec_max

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        guesses = guesses_in(batches)
        wanted = self._wanted(guesses, batches.top_k)

        def run(cell: Cell, hit: np.ndarray) -> Cell:
            read_bytes = np.empty(len(batches), np.int64)
            prefetched = np.empty(len(batches), np.int32)
            totals = BASES[self.params.base](
                batches,
                guesses,
                wanted,
                min(self.params.spec_max, batches.top_k),
                cell,
                read_bytes,
                prefetched,
                hit,
            )
            demand, useful_bytes, reads, useful, late, skipped, evicted, promoted = totals
            read = int(read_bytes[batches.counted].sum())
            counters = {
                "demand_bytes": demand,
                "speculative_useful_bytes": useful_bytes,
                "speculative_reads": reads,
                "speculative_useful": useful,
                LATE: late,
                "speculative_skipped": skipped,
                "evicted_by_speculation": evicted,
                "promoted": promoted,
                "speculative_wasted_bytes": read - demand - useful_bytes,
                "useful_share": useful / reads if reads else None,
            }
            return replace(cell, read_bytes=read_bytes, prefetched=prefetched, counters=counters)

        return cells_of(batches, budgets, per_lookup, run)

    def _wanted(self, guesses: Guesses, top_k: int) -> np.ndarray:
        """Return which guesses are worth a read, bool [B, m]."""
        if not self.params.drop_frac:
            return np.ones(guesses.keys.shape, np.bool_)
        if guesses.weights is None:
            raise UsageError(
                f"prefetch.drop_frac needs predicted weights, and {self.params.predictor} predicts "
                "none on this trace; leave drop_frac at 0 or take another predictor."
            )
        # An expert whose weight is not known (NaN) is read.
        wanted = np.asarray(~(guesses.weights < self.params.drop_frac / top_k))
        wanted[:, 0] = True
        return wanted
