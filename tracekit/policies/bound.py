"""A bound on the hits of every demand policy, for experts of any sizes."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tracekit.policies.base import Batches, Limit, Policy, register
from tracekit.policies.limits import limits_of

# What a report and a study ask for: 0.1 s a budget at 40,000 lookups.
PRICES = 100


def bounded(bypass: bool) -> str:
    """Say in words which policies the bound is of: what stands after *every policy that*."""
    if bypass:
        return (
            "keeps to its budget after every load and reads only what is asked for, even if it drops "
            "at once what it has just used"
        )
    return (
        "keeps to its budget, reads only what is asked for, and keeps what it reads until the load "
        "ends"
    )


@dataclass(frozen=True)
class BoundParams:
    """Parameters of `Bound`.

    Attributes
    ----------
    prices : int
        Iterations of the price bound, which only matters where sizes differ between layers. 0: it is
        left out. Any number gives a bound that is true; more of them make it tighter, and 100 get
        most of that. A report and a study take 100.
    """

    prices: int = 0

    def __post_init__(self) -> None:
        if self.prices < 0:
            raise ValueError("prices must be 0 or more")


@register
class Bound(Policy):
    """No demand policy of a class has more hits than this at a budget, or reads fewer bytes.

    *The class.* A demand policy reads an expert only when a batch asks for it, keeps the experts of a
    batch until its load ends, and then evicts until the rest fits the budget. Under this accounting
    it is a set of kept intervals, each from one use of a key to its next: after every batch, the
    kept intervals that span it fit into the budget less the bytes of the batch, or into nothing if
    the batch alone is larger. See `tracekit.policies.intervals`.

    *The class with ``--bypass``.* A policy may also drop at once what a batch has just used. Then the
    kept intervals that span a batch, or begin with it, fit into the budget after it. As long as
    every batch fits into the budget, or the next one is of another layer, this class holds the other.

    *Equal sizes.* At the first batch where too many intervals meet, one must go, and the one that
    ends last meets every later batch that the others meet. So Belady's rule keeps the most. For the
    hits of decoded tokens, intervals that a prompt's batch ends count nothing: Belady's rule with
    such a next use taken as *never*. Both bounds are then what a policy that knows the future
    reaches.

    *Sizes that differ between layers.* Belady's rule is no bound then: a small expert may have to
    go for a later large one. The bound is the least of these:

    - every interval takes no more than the smallest expert does;
    - every size alone has at most the hits that Belady's rule gives it, with the room that the
      batches of all layers leave; and all hits together have at most the bytes that Belady's rule
      keeps if experts can be kept in part, which are best spent on the smallest experts;
    - a price bound by duality, if `prices` asks for it and there are at most a million lookups: see
      `Room.price_bound`.

    *Bytes.* At least as many bytes are read as are asked for, less those that Belady's rule keeps if
    experts can be kept in part. Also, each key is read once at its size, and every other miss reads
    the smallest size at least.

    *One layer.* There is no bound of a layer's own figures: at most budgets a layer alone would fit,
    so that its bound would say nothing.

    Every bound is of its own figure: no policy need reach several of them at once.
    """

    name = "bound"
    summary = (
        "proven limits of policies that read on demand and keep each load until it ends (with "
        "--bypass: that may drop it at once)"
    )
    Params = BoundParams
    offline = True
    can_bypass = True
    gives_limits = True
    params: BoundParams
    kind: ClassVar[str] = "demand"

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Limit]:
        return limits_of(batches, budgets, self.params.prices)
