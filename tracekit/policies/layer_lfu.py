"""LFU within each layer's share of the budget."""

import numpy as np

from tracekit.policies.base import register
from tracekit.policies.fed import FedPolicy
from tracekit.policies.lfu import LFU
from tracekit.policies.model import Model
from tracekit.policies.shares import RunInShares


@register
class LayerLFU(FedPolicy):
    """The budget in equal shares per MoE layer; a layer evicts its own least frequently used."""

    name = "layer-lfu"
    summary = "LFU within equal shares of the budget, one per MoE layer"
    in_shares = True
    can_bypass = True
    state = LFU.state

    def start(self, model: Model, budgets: np.ndarray) -> RunInShares:
        return RunInShares(LFU(), model, budgets)
