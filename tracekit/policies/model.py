"""What a policy knows before the first batch: the sizes of the experts, and the rules of the replay."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """L MoE layers of E experts, and how a budget is spent on them.

    A *key* is a dense index of (MoE layer, expert): ``moe_layer * n_expert + expert``.

    Attributes
    ----------
    expert_bytes : int64 [L]
        Size of one expert of each MoE layer; 1 where `sized` is False.
    layer_ids : int16 [L]
        The model's own number of each MoE layer.
    n_expert, top_k : int
    sized : bool
        Whether the sizes of experts are known; if not, all are taken for equal.
    bypass : bool
        The engine may drop at once what a batch has just used, since it stages what it reads in a
        scratch buffer that is not charged to the cache. Only set for a policy that ``can_bypass``.
    in_slots : bool
        A budget is a number of experts of every MoE layer, in bytes; see `shares`.
    """

    expert_bytes: np.ndarray
    layer_ids: np.ndarray
    n_expert: int
    top_k: int
    sized: bool = True
    bypass: bool = False
    in_slots: bool = False

    @property
    def n_layers(self) -> int:
        """How many MoE layers the model has."""
        return len(self.expert_bytes)

    @property
    def n_keys(self) -> int:
        """How many (layer, expert) pairs the model has."""
        return len(self.expert_bytes) * self.n_expert

    @cached_property
    def key_bytes(self) -> np.ndarray:
        """Size of each key, int64 [n_keys]."""
        return np.repeat(self.expert_bytes, self.n_expert)

    @cached_property
    def has_equal_sizes(self) -> bool:
        """Whether the experts of all layers have one size."""
        return bool((self.expert_bytes == self.expert_bytes[:1]).all())

    @property
    def bank_bytes(self) -> int:
        """Bytes of all experts of all MoE layers."""
        return int(self.expert_bytes.sum()) * self.n_expert

    @property
    def token_cycle_bytes(self) -> int:
        """Bytes one token touches over all layers: sum over layers of k × expert bytes."""
        return int(self.expert_bytes.sum()) * self.top_k

    def shares(self, budget: int) -> np.ndarray:
        """Divide a budget of the whole model among its MoE layers, int64 [L].

        Each gets the same number of bytes; with `in_slots`, the same number of experts.
        """
        if not self.in_slots:
            return np.full(len(self.expert_bytes), budget // len(self.expert_bytes), np.int64)
        return np.asarray(self.slots(budget) * self.expert_bytes)

    def slots(self, budget: int) -> int:
        """Return how many experts of every MoE layer `budget` holds."""
        return budget // int(self.expert_bytes.sum())
