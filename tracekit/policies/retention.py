"""LRU that keeps the residents that the next layer is predicted to use."""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.figures import Figure, Unit
from tracekit.policies.base import Batches, Cell, Guesses, Policy, register
from tracekit.policies.cells import cells_of
from tracekit.policies.follow_acting import run_on_follow
from tracekit.policies.lru_acting import run_on_lru

PROMOTED = Figure("promoted", Unit.COUNT, "residents that were predicted and made recent")
PROMOTED_LEGEND = (
    "promoted: residents that were predicted, made as recent as if just used; with base=follow, worth "
    "as much as what is certain to be used"
)
# What evicts under a policy that acts on a prediction, by the name of that policy.
BASES = {"lru": run_on_lru, "follow": run_on_follow}


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
        none_wanted = np.zeros(guesses.keys.shape, np.bool_)
        run_on = BASES[self.params.base]

        def run(cell: Cell, hit: np.ndarray) -> Cell:
            read, ahead = np.empty(len(batches), np.int64), np.empty(len(batches), np.int32)
            *_, promoted = run_on(batches, guesses, none_wanted, 0, cell, read, ahead, hit)
            return replace(cell, counters={PROMOTED.name: promoted})

        return cells_of(batches, budgets, per_lookup, run)


def check_base(base: str) -> None:
    """Refuse, with a ValueError, a policy that retention and prefetch cannot stand on."""
    if base not in BASES:
        raise ValueError(f"base must be {' or '.join(BASES)}")


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
