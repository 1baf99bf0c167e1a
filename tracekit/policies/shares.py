"""A budget in shares per MoE layer, where each layer is a cache of its own.

In go batches, budgets and the rule of a policy; out come cells of the whole model. Nothing here
knows which rule it is.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tracekit.policies.base import Batches, Cell

Simulate = Callable[[Batches, np.ndarray, bool], list[Cell]]


def one_layer(batches: Batches, layer: int, which: np.ndarray) -> Batches:
    """Return the batches `which`, those of `layer`, as a run of a model with that layer alone."""
    alone = batches.only(which)
    return replace(
        alone,
        keys=alone.keys - np.int32(layer * batches.n_expert),
        layer=np.zeros(len(which), np.int32),
        expert_bytes=batches.expert_bytes[layer : layer + 1],
        layer_ids=batches.layer_ids[layer : layer + 1],
    )


def simulate_in_shares(
    simulate: Simulate, batches: Batches, budgets: np.ndarray, per_lookup: bool
) -> list[Cell]:
    """Replay every layer alone with its share of the budget, as `Batches.shares` divides it.

    A share that is smaller than a layer's routing overflows, as any budget does. No other layer
    gives up room for that, so the layers together may hold more than the budget.

    Parameters
    ----------
    simulate : callable
        ``Policy.simulate`` of the rule that each layer follows.
    batches : Batches
    budgets : int64 [C]
        Of the whole model.
    per_lookup : bool
        Fill ``Cell.hit`` too.
    """
    shares = np.array([batches.shares(budget) for budget in budgets.tolist()])
    shape = (len(budgets), len(batches))
    hits = np.zeros(shape, np.int32)
    resident = np.zeros(shape, np.int64)
    hit = np.zeros((len(budgets), len(batches.keys) if per_lookup else 0), np.bool_)
    for layer in range(len(batches.expert_bytes)):
        which = np.flatnonzero(batches.layer == layer)
        alone = one_layer(batches, layer, which)
        for c, cell in enumerate(simulate(alone, shares[:, layer], per_lookup)):
            hits[c, which] = cell.hits
            resident[c, which] = np.diff(cell.resident_bytes, prepend=0)
            if per_lookup:
                hit[c, batches.lookups_in(which)] = cell.hit
    # Each batch changes the resident bytes of its own layer; the sum of all changes is the total.
    np.cumsum(resident, axis=1, out=resident)
    return [
        Cell(int(budget), hits[c], resident[c], hit=hit[c] if per_lookup else None)
        for c, budget in enumerate(budgets)
    ]
