"""What every cache policy is given, and what it gives back."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from tracekit.figures import Figure
from tracekit.kernels import kernel
from tracekit.registry import Registry
from tracekit.trace.schema import DECODE


@dataclass(frozen=True, eq=False)
class Guesses:
    """What a predictor has in hand after each batch: the experts the next routed layer will want.

    Row b is for the layer of the next batch, or after the last layer for the first layer of the
    next token. Rows of prefill batches, and of batches after which nothing can be said, hold -1.

    Attributes
    ----------
    keys : int32 [B, m]
        Predicted keys, best first; -1 where fewer than m are predicted.
    weights : float32 [B, m] or None
        Their predicted routing weights, summing to 1 over the first k; NaN beside -1. None from a
        predictor that only ranks.
    """

    keys: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Batches:
    """A run as the cache sees it: B batches, one per layer load, in the order they happened.

    A *key* is a dense index of (MoE layer, expert): ``moe_layer * n_expert + expert``. All keys of
    a batch belong to one layer, so they have one size. A key stands once in its batch, however
    many tokens of the batch selected it.

    Attributes
    ----------
    keys : int32 [N]
        The distinct keys of each batch, in the order of their *last* touch: after the batch, the
        last of them is the most recent.
    admit_rank : uint16 [N]
        The place of each key in its batch in the order of *first* touch, from 0: the order in
        which an engine admits what it misses. Equal to the place in `keys` for a decoded token.
    batch_start : int64 [B + 1]
        Batch b holds ``keys[batch_start[b]:batch_start[b + 1]]``.
    layer : int32 [B]
        Index of the batch's layer among the MoE layers.
    turn, pass_id, step : int32 [B]
        The turn and pass of a batch, and the absolute position of its last token.
    phase : uint8 [B]
        0 prefill, 1 decode.
    expert_bytes : int64 [L]
        Size of one expert of each MoE layer.
    layer_ids : int16 [L]
        The model's own number of each MoE layer.
    n_expert : int
    top_k : int
    weights : float32 [N] or None
        Final routing weight of each key of a *decode* batch (NaN: unknown, and in prefill batches).
        Only lossy policies are given it.
    guesses : Guesses or None
        Only a policy with ``needs_predictor`` is given it.
    """

    keys: np.ndarray
    admit_rank: np.ndarray
    batch_start: np.ndarray
    layer: np.ndarray
    turn: np.ndarray
    pass_id: np.ndarray
    step: np.ndarray
    phase: np.ndarray
    expert_bytes: np.ndarray
    layer_ids: np.ndarray
    n_expert: int
    top_k: int
    weights: np.ndarray | None = None
    guesses: Guesses | None = None

    def __len__(self) -> int:
        return len(self.layer)

    @property
    def n_keys(self) -> int:
        """How many (layer, expert) pairs the model has."""
        return len(self.expert_bytes) * self.n_expert

    @cached_property
    def lookups(self) -> np.ndarray:
        """Lookups of each batch, int64 [B]: one per distinct expert."""
        return np.diff(self.batch_start)

    @cached_property
    def key_bytes(self) -> np.ndarray:
        """Size of each key, int64 [n_keys]."""
        return np.repeat(self.expert_bytes, self.n_expert)

    @cached_property
    def layer_of_lookup(self) -> np.ndarray:
        """Index of each lookup's MoE layer, uint8 [N] (uint16 from 257 layers on)."""
        dtype = np.min_scalar_type(max(len(self.expert_bytes) - 1, 0))
        return np.repeat(self.layer.astype(dtype), self.lookups)

    @cached_property
    def next_use(self) -> np.ndarray:
        """Position in `keys` of each key's next lookup, int32 [N]; N where there is none."""
        return _next_use(self.keys, self.n_keys)

    @cached_property
    def after_first_decode(self) -> np.ndarray:
        """Decode batches after their turn's first decoded token, bool [B].

        A prefill may leave more resident than the budget; by then every layer has had its turn to
        evict, and what is still too much is the policy's doing.
        """
        decode = self.phase == DECODE
        first_pass = np.full(int(self.turn.max(initial=-1)) + 1, np.iinfo(np.int32).max)
        np.minimum.at(first_pass, self.turn[decode], self.pass_id[decode])
        return decode & (self.pass_id > first_pass[self.turn])

    def lookups_in(self, which: np.ndarray) -> np.ndarray:
        """Return the positions of the lookups of the batches `which`, int64 [N']."""
        n_lookups = self.lookups[which]
        first = np.cumsum(n_lookups) - n_lookups
        return np.arange(n_lookups.sum()) + np.repeat(self.batch_start[which] - first, n_lookups)

    def only(self, which: np.ndarray) -> "Batches":
        """Return the batches `which` (int64 [B'], ascending) as a run of their own."""
        lookups = self.lookups_in(which)
        return replace(
            self,
            keys=self.keys[lookups],
            admit_rank=self.admit_rank[lookups],
            batch_start=np.concatenate([[0], np.cumsum(self.lookups[which])]),
            layer=self.layer[which],
            turn=self.turn[which],
            pass_id=self.pass_id[which],
            step=self.step[which],
            phase=self.phase[which],
            weights=None if self.weights is None else self.weights[lookups],
            guesses=None,
        )

    @property
    def bank_bytes(self) -> int:
        """Bytes of all experts of all MoE layers."""
        return int(self.expert_bytes.sum()) * self.n_expert

    @property
    def token_cycle_bytes(self) -> int:
        """Bytes one token touches over all layers: sum over layers of k × expert bytes."""
        return int(self.expert_bytes.sum()) * self.top_k


# One pass from the end, remembering where each key was seen last.
@kernel
def _next_use(keys, n_keys):
    next_use = np.empty(keys.size, np.int32)
    seen = np.full(n_keys, keys.size, np.int32)
    for p in range(keys.size - 1, -1, -1):
        next_use[p] = seen[keys[p]]
        seen[keys[p]] = p
    return next_use


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
        Lookups of each batch where they differ from ``Batches.lookups`` (a lossy policy).
    read_bytes : int64 [B] or None
        Bytes read for each batch where they are not ``misses × expert_bytes`` (a speculative one).
    prefetched : int32 [B] or None
        How many of the hits of each batch are owed to a read ahead; None of a policy that reads
        nothing ahead.
    hit : bool [N] or None
        Whether each lookup hit, in the order of ``Batches.keys``; only when `simulate` was asked.
    counters : mapping
        A policy's own totals, by the name they are printed under.
    """

    budget_bytes: int
    hits: np.ndarray
    resident_bytes: np.ndarray
    lookups: np.ndarray | None = None
    read_bytes: np.ndarray | None = None
    prefetched: np.ndarray | None = None
    hit: np.ndarray | None = None
    counters: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """What no policy can better at one budget: a bound has totals, but no run behind them.

    Attributes
    ----------
    budget_bytes : int
    hits, hits_decode : int
        At most so many hits, of all lookups and of those of decode batches.
    read_bytes, read_bytes_decode : int
        At least so many bytes read.
    """

    budget_bytes: int
    hits: int
    hits_decode: int
    read_bytes: int
    read_bytes_decode: int


@dataclass(frozen=True)
class NoParams:
    """The parameters of a policy that has none."""


class Policy(ABC):
    """A cache policy. Derive, set the class attributes, write `simulate`, and ``@register`` it.

    Attributes
    ----------
    name : str
        What the user types.
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
    speculative : bool
        It reads experts that nobody has asked for yet.
    lossy : bool
        It changes what the model computes, and is given ``batches.weights``.
    counters : tuple of Figure
        The declarations of its own totals: name, unit, what it means, whether it may be null.
    legend : tuple of str
        Lines that explain its counters under a table, in words for a reader of that table.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Params: ClassVar[type] = NoParams
    offline: ClassVar[bool] = False
    stochastic: ClassVar[bool] = False
    needs_predictor: ClassVar[bool] = False
    speculative: ClassVar[bool] = False
    lossy: ClassVar[bool] = False
    counters: ClassVar[tuple[Figure, ...]] = ()
    legend: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: Any = None):
        self.params = self.Params() if params is None else params

    @abstractmethod
    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell] | list[Limit]:
        """Replay `batches` once for each of `budgets` (int64 [C], bytes) and return C cells.

        The accounting is fixed: each distinct key of a batch is looked up once; a miss makes it
        resident at its layer's ``expert_bytes``; after the batch, entries that it did not touch
        are evicted until the resident bytes fit the budget. Cells do not depend on each other.

        Parameters
        ----------
        batches : Batches
        budgets : int64 [C]
        per_lookup : bool
            Fill ``Cell.hit`` too.
        """


POLICIES: Registry[Policy] = Registry("policy", Policy)
register = POLICIES.register
