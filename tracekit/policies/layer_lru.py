"""LRU within each layer's share of the budget."""

import numpy as np

from tracekit.policies.base import register
from tracekit.policies.fed import FedPolicy
from tracekit.policies.lru import LRU
from tracekit.policies.model import Model
from tracekit.policies.shares import RunInShares


@register
class LayerLRU(FedPolicy):
    """The budget in equal shares per MoE layer; a layer evicts its own least recently used."""

    name = "layer-lru"
    summary = "LRU within equal shares of the budget, one per MoE layer"
    in_shares = True
    can_bypass = True

    def start(self, model: Model, budgets: np.ndarray) -> RunInShares:
        return RunInShares(LRU(), model, budgets)
