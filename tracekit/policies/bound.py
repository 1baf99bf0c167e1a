"""Bounds on the hits of every policy of a class, for experts of any sizes."""

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np

from tracekit.policies.base import Batches, Limit, Policy, register
from tracekit.policies.fed import FedPolicy, Run
from tracekit.policies.limits import LimitsRun, limits_in_shares, limits_of_equal_sizes
from tracekit.policies.model import Model
from tracekit.policies.shares import model_of_layer, one_layer

# What a report and a study ask for: 0.1 s a budget at 40,000 lookups.
PRICES = 100
# All layers in one pass are quicker for a short run; a long one takes a copy of all its lookups for it.
_MOST_AT_ONCE = 4_000_000


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
class Bound(FedPolicy):
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

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def bounded(self, bypass: bool, in_slots: bool = False) -> str:
        """Say in words which policies it bounds: what stands after *every policy that*."""
        return bounded(bypass)

    def start(self, model: Model, budgets: np.ndarray) -> Run:
        return LimitsRun(model, budgets, self.params.prices)

    def gives_totals(self, batches: Batches, n_budgets: int) -> bool:
        return type(self) is Bound and batches.has_equal_sizes

    def totals(self, batches: Batches, budgets: np.ndarray) -> list[Limit]:
        return limits_of_equal_sizes(batches, budgets)


class BoundInShares(Bound):
    """The bound of policies whose layers each keep to their share of the budget (``in_shares``).

    A layer is then a cache of its own whose experts have one size, so that Belady's rule within the
    share is exact, of all hits and of decode hits. The totals are those of all layers.
    """

    name = "bound-in-shares"
    kind = "layer-shares"

    def bounded(self, bypass: bool, in_slots: bool = False) -> str:
        share = (
            "room for the same number of experts" if in_slots else "an equal share of the budget"
        )
        return f"gives each MoE layer {share}, and there {bounded(bypass)}"

    def start(self, model: Model, budgets: np.ndarray) -> Run:
        return _LimitsInShares(model, budgets, self.params.prices)

    def gives_totals(self, batches: Batches, n_budgets: int) -> bool:
        return len(batches.keys) <= _MOST_AT_ONCE

    def totals(self, batches: Batches, budgets: np.ndarray) -> list[Limit]:
        return limits_in_shares(batches, budgets)


class BoundAhead(Bound):
    """The bound of policies that also read ahead, if they know what the next load asks for.

    *The class.* After the load of a decoded token, at most `most` of the experts that the next load
    of a decoded token asks for are read ahead; what is resident still fits the budget.

    *The bound.* Of the lookups of a batch that can be read ahead, an engine that knows the future
    reads those whose last use is longest ago: to keep one of them takes room for as long as any other
    of the batch, and longer. So they count as hits, their intervals are left out, and the bound of
    what reads on demand is taken of the rest. Entries that were read ahead are taken to need no room,
    so the true optimum is lower. From half of a routing on (`most` > k / 2) it says little.

    *Bytes.* Reading ahead never lowers them: what was read ahead and used could have been read when
    it was used. So the least bytes are those of `Bound`.
    """

    name = "bound-ahead"
    kind = "reads-ahead"

    def __init__(self, params: BoundParams, most: int):
        super().__init__(params)
        self.most = most

    def bounded(self, bypass: bool, in_slots: bool = False) -> str:
        return (
            f"reads ahead, after each load of a decoded token, at most {self.most} of the experts that "
            f"the next such load asks for, and otherwise {bounded(bypass)}"
        )

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Limit]:
        """Judge the whole run: what is best read ahead depends on all of it."""
        run = LimitsRun(batches, np.asarray(budgets, np.int64), self.params.prices, self.most)
        return run.feed(batches)


class _LimitsInShares(Run):
    """The limits of every layer alone with its share of the budget, added up, of a run in pieces."""

    def __init__(self, model: Model, budgets: np.ndarray, prices: int):
        shares = np.array([model.shares(budget) for budget in budgets.tolist()])
        self._budgets = budgets
        self._runs = [
            LimitsRun(model_of_layer(model, layer), shares[:, layer], prices)
            for layer in range(model.n_layers)
        ]

    def feed(self, batches: Batches, per_lookup: bool = False) -> list[Limit]:
        found = np.zeros((len(self._budgets), len(_TOTALS)), np.int64)
        for layer, run in enumerate(self._runs):
            alone = one_layer(batches, layer, np.flatnonzero(batches.layer == layer))
            found += [[getattr(limit, name) for name in _TOTALS] for limit in run.feed(alone)]
        return [
            Limit(int(budget), **dict(zip(_TOTALS, totals, strict=True)))
            for budget, totals in zip(self._budgets, found.tolist(), strict=True)
        ]


_TOTALS = [each.name for each in fields(Limit) if each.name != "budget_bytes"]


def bound_of(policy: Policy, demand: Bound) -> Bound | None:
    """Return the bound of the class that `policy` is of, made as `demand` is; None if there is none."""
    if policy.gives_limits or policy.lossy:
        return None
    if policy.reads_ahead is not None:
        return BoundAhead(demand.params, policy.reads_ahead)
    if policy.speculative:
        return None
    return BoundInShares(demand.params) if policy.in_shares else demand


def bounded(bypass: bool) -> str:
    """Say in words which policies `Bound` is of: what stands after *every policy that*."""
    if bypass:
        return (
            "keeps to its budget after every load and reads only what is asked for, even if it drops "
            "at once what it has just used"
        )
    return (
        "keeps to its budget, reads only what is asked for, and keeps what it reads until the load "
        "ends"
    )
