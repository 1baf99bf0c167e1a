"""What every cache policy is given, what it gives back, and what it says of itself.

A policy takes a run as `Batches` and gives a `Cell` for each budget. Nothing here knows a trace,
or what is made of the cells.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tracekit.figures import Figure
from tracekit.policies.batches import Batches as Batches
from tracekit.policies.known import Guesses as Guesses
from tracekit.policies.known import Popularity as Popularity
from tracekit.policies.totals import Totals as Totals
from tracekit.registry import Registry


@dataclass(frozen=True, eq=False)
class Cell:
    """What one policy did at one budget.

    Attributes
    ----------
    budget_bytes : int
    hits : int32 [B]
        Hits of each batch.
    resident_bytes : int64 [B]
        Resident size after each batch's eviction.
    lookups : int32 [B] or None
        Lookups of each batch; None if they are ``Batches.lookups``: the policy is not lossy.
    read_bytes : int64 [B] or None
        Bytes read for each batch; None if ``misses × expert_bytes``: the policy reads nothing ahead.
    prefetched : int32 [B] or None
        Hits of each batch that are due to a read ahead; None if the policy reads nothing ahead.
    hit : bool [N] or None
        Whether each lookup hit, in the order of ``Batches.keys``; only when `simulate` was asked.
    counters : mapping
        The policy's own totals, by the names in ``Policy.counters``; None: there is no figure.
    """

    budget_bytes: int
    hits: np.ndarray
    resident_bytes: np.ndarray
    lookups: np.ndarray | None = None
    read_bytes: np.ndarray | None = None
    prefetched: np.ndarray | None = None
    hit: np.ndarray | None = None
    counters: Mapping[str, int | float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """Proven limits at one budget: totals, without a run behind them.

    Attributes
    ----------
    budget_bytes : int
    hits, hits_decode : int
        No policy of the class that is bounded has more hits, of all lookups and of those of decode
        batches.
    read_bytes, read_bytes_decode : int
        No such policy reads fewer bytes.
    """

    budget_bytes: int
    hits: int
    hits_decode: int
    read_bytes: int
    read_bytes_decode: int


@dataclass(frozen=True)
class StateArray:
    """An array that an engine keeps to run a policy.

    Attributes
    ----------
    name : str
    shape : str
        How many numbers it holds, by L layers, E experts and k: ``L × E``.
    size_bytes : int
    means : str
        What it holds.
    """

    name: str
    shape: str
    size_bytes: int
    means: str


@dataclass(frozen=True)
class NoParams:
    """The parameters of a policy that has none."""


class Policy(ABC):
    """A cache policy. Derive, set the class attributes, write `simulate`, and ``@register`` it.

    Attributes
    ----------
    name : str
        The name that the user types.
    summary : str
        One line for ``tracekit policies``.
    Params : type
        A frozen dataclass; its fields become ``--param NAME.FIELD=VALUE``.
    offline : bool
        It looks into the future.
    stochastic : bool
        It draws random numbers; `Params` then has a field ``seed``.
    needs_predictor : bool
        It acts on a prediction and is given ``batches.guesses``; `Params` then has the fields
        ``predictor`` (its name) and ``horizon``.
    needs_popularity : bool
        It goes by which experts were used most elsewhere: on other turns, on another trace, or in a
        file of counts. It is given ``batches.popularity``.
    speculative : bool
        It reads experts before they are looked up.
    lossy : bool
        It changes what the model computes, and is given ``batches.weights``.
    needs_rank : bool
        It goes by which slot of a routing is the heaviest, and is left out where a trace does not
        know that.
    in_shares : bool
        Each MoE layer keeps to its share of the budget (``Batches.shares``), so that all of them
        may overrun it.
        Any other policy keeps to the budget, or to the last batch where that is larger. Under
        ``batches.bypass`` all of them keep to the budget.
    can_bypass : bool
        It heeds ``batches.bypass``: the entries that a batch has just used may be evicted after it,
        as any others. A replay with ``bypass`` leaves a policy out that does not.
    gives_limits : bool
        `simulate` returns `Limit`, not `Cell`: proven totals without a run behind them.
    counters : tuple of Figure
        The declarations of its own totals: name, unit, meaning, whether it may be null. They count
        what ``Batches.counted`` does, and those of decoded tokens what ``Batches.counted_decode``
        does.
    legend : tuple of str
        Lines under a table that explain its counters to a reader of the table.
    pseudo_code : str
        The rule for whoever writes it into an engine; empty if the docstring says it all.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Params: ClassVar[type[Any]] = NoParams
    offline: ClassVar[bool] = False
    stochastic: ClassVar[bool] = False
    needs_predictor: ClassVar[bool] = False
    needs_popularity: ClassVar[bool] = False
    speculative: ClassVar[bool] = False
    lossy: ClassVar[bool] = False
    needs_rank: ClassVar[bool] = False
    in_shares: ClassVar[bool] = False
    can_bypass: ClassVar[bool] = False
    gives_limits: ClassVar[bool] = False
    counters: ClassVar[tuple[Figure, ...]] = ()
    legend: ClassVar[tuple[str, ...]] = ()
    pseudo_code: ClassVar[str] = ""

    def __init__(self, params: Any = None):
        self.params = self.Params() if params is None else params

    @property
    def requires(self) -> str:
        """What an engine that runs it has to know besides what the cache has seen, in words."""
        if self.offline:
            return "the future"
        if self.needs_popularity:
            return "counts of use"
        return "a predictor" if self.needs_predictor else "nothing"

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        """Return what an engine keeps besides its list of residents, for a model of that shape.

        Parameters
        ----------
        n_layers : int
            MoE layers.
        n_expert, top_k : int
        """
        return ()

    @property
    def reads_ahead(self) -> int | None:
        """The most experts that it reads ahead after a load, for the next load of a decoded token.

        None: it reads nothing ahead, or more than that.
        """
        return None

    @abstractmethod
    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell] | list[Limit]:
        """Replay `batches` once for each of `budgets` (int64 [C], bytes) and return C cells.

        The accounting is fixed. Each distinct key of a batch is looked up once. A miss makes it
        resident at its layer's ``expert_bytes``. After the batch, entries that it did not touch
        are evicted one by one until the resident bytes fit the budget; under ``batches.bypass``
        those that it touched may go too. Cells do not depend on each other. `per_lookup` asks for
        ``Cell.hit`` too.
        """

    def gives_totals(self, batches: Batches, n_budgets: int) -> bool:
        """Say whether `totals` takes a whole run, and less time than a replay at each budget."""
        return False

    def totals(self, batches: Batches, budgets: np.ndarray) -> list[Totals] | list[Limit]:
        """Return the totals of `simulate` at each of `budgets`, without a figure of each batch."""
        raise NotImplementedError(f"{self.name} has no totals of its own")


POLICIES: Registry[Policy] = Registry("policy", Policy)
register = POLICIES.register
