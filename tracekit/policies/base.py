"""What every cache policy is given, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tracekit.registry import Registry


@dataclass(frozen=True)
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
    admit_rank : int32 [N]
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
        Read by lossy policies only; None when it was not asked for.
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

    def __len__(self) -> int:
        return len(self.layer)

    @property
    def n_keys(self) -> int:
        """How many (layer, expert) pairs the model has."""
        return len(self.expert_bytes) * self.n_expert

    @property
    def lookups(self) -> np.ndarray:
        """Lookups of each batch, int64 [B]: one per distinct expert."""
        return np.diff(self.batch_start)

    @property
    def bank_bytes(self) -> int:
        """Bytes of all experts of all MoE layers."""
        return int(self.expert_bytes.sum()) * self.n_expert

    @property
    def token_cycle_bytes(self) -> int:
        """Bytes one token touches over all layers: sum over layers of k × expert bytes."""
        return int(self.expert_bytes.sum()) * self.top_k


@dataclass(frozen=True)
class Cell:
    """What one policy did at one budget.

    Attributes
    ----------
    budget_bytes : int
    hits : int32 [B] or None
        Hits of each batch; None where a policy can tell only the total (`bound`).
    peak_resident_bytes : int or None
        Largest resident size after any batch's eviction.
    peak_resident_bytes_decode : int or None
        The same over the decode batches after each turn's first decoded token.
    lookups : int32 [B] or None
        Lookups of each batch where they differ from ``Batches.lookups`` (a lossy policy).
    read_bytes : int64 [B] or None
        Bytes read for each batch where they are not ``misses × expert_bytes`` (a speculative one).
    counters : mapping
        A policy's own totals, by the name they are printed under.
    """

    budget_bytes: int
    hits: np.ndarray | None
    peak_resident_bytes: int | None
    peak_resident_bytes_decode: int | None
    lookups: np.ndarray | None = None
    read_bytes: np.ndarray | None = None
    counters: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class NoParams:
    """The parameters of a policy that has none."""


class Policy:
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
    needs_predictor, speculative, lossy : bool
        It acts on a prediction; it reads experts nobody asked for yet; it changes what the model
        computes.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Params: ClassVar[type] = NoParams
    offline: ClassVar[bool] = False
    stochastic: ClassVar[bool] = False
    needs_predictor: ClassVar[bool] = False
    speculative: ClassVar[bool] = False
    lossy: ClassVar[bool] = False

    def __init__(self, params: Any = None):
        self.params = self.Params() if params is None else params

    def simulate(self, batches: Batches, budgets: np.ndarray) -> list[Cell]:
        """Replay `batches` once for each of `budgets` (int64 [C], bytes) and return C cells.

        The accounting is fixed: each distinct key of a batch is looked up once; a miss makes it
        resident at its layer's ``expert_bytes``; after the batch, entries that it did not touch
        are evicted until the resident bytes fit the budget.
        """
        raise NotImplementedError


POLICIES: Registry[Policy] = Registry("policy", Policy)
register = POLICIES.register
