"""LFU within each layer's share of the budget."""

import numpy as np

from tracekit.policies.base import Batches, Cell, Policy, register
from tracekit.policies.lfu import LFU
from tracekit.policies.shares import simulate_in_shares


@register
class LayerLFU(Policy):
    """The budget in equal shares per MoE layer; a layer evicts its own least frequently used."""

    name = "layer-lfu"
    summary = "LFU within equal shares of the budget, one per MoE layer"
    in_shares = True
    can_bypass = True
    state = LFU.state

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        return simulate_in_shares(LFU().simulate, batches, budgets, per_lookup)
