"""A budget in shares per MoE layer, where each layer is a cache of its own.

In go batches, budgets and the rule of a policy; out come cells of the whole model. Nothing here
knows which rule it is.
"""

from dataclasses import replace

import numpy as np

from tracekit.policies.base import Batches, Cell
from tracekit.policies.fed import FedPolicy, Run
from tracekit.policies.model import Model


def model_of_layer(model: Model, layer: int) -> Model:
    """Return a model that has `layer` alone."""
    return Model(
        expert_bytes=model.expert_bytes[layer : layer + 1],
        layer_ids=model.layer_ids[layer : layer + 1],
        n_expert=model.n_expert,
        top_k=model.top_k,
        sized=model.sized,
        bypass=model.bypass,
    )


def one_layer(batches: Batches, layer: int, which: np.ndarray) -> Batches:
    """Return the batches `which`, those of `layer`, as a run of a model with that layer alone.

    Without the rows of routings, which no policy asks for there.
    """
    alone = replace(batches, rows=None, row_start=None).only(which)
    first = layer * batches.n_expert
    return replace(
        alone,
        keys=alone.keys - np.int32(first),
        layer=np.zeros(len(which), np.int32),
        later=batches.later and batches.later.of_keys(first, first + batches.n_expert),
        expert_bytes=batches.expert_bytes[layer : layer + 1],
        layer_ids=batches.layer_ids[layer : layer + 1],
    )


class RunInShares(Run):
    """Every layer alone with its share of the budget, as `Model.shares` divides it.

    A share that is smaller than a layer's routing overflows, as any budget does. No other layer
    gives up room for that, so the layers together may hold more than the budget.

    Parameters
    ----------
    policy : FedPolicy
        The rule that each layer follows.
    model : Model
    budgets : int64 [C]
        Of the whole model.
    """

    def __init__(self, policy: FedPolicy, model: Model, budgets: np.ndarray):
        shares = np.array([model.shares(budget) for budget in budgets.tolist()])
        self._budgets = budgets
        self._runs = [
            policy.start(model_of_layer(model, layer), share)
            for layer, share in enumerate(np.ascontiguousarray(shares.T))
        ]
        self._used = np.zeros((model.n_layers, len(budgets)), np.int64)

    def feed(self, batches: Batches, per_lookup: bool = False) -> list[Cell]:
        shape = (len(self._budgets), len(batches))
        hits = np.zeros(shape, np.int32)
        resident = np.zeros(shape, np.int64)
        hit = np.zeros((len(self._budgets), len(batches.keys) if per_lookup else 0), np.bool_)
        used = self._used.sum(axis=0)
        for layer, run in enumerate(self._runs):
            which = np.flatnonzero(batches.layer == layer)
            if not len(which):
                continue
            for c, cell in enumerate(run.feed(one_layer(batches, layer, which), per_lookup)):
                assert isinstance(cell, Cell)
                hits[c, which] = cell.hits
                resident[c, which] = np.diff(cell.resident_bytes, prepend=self._used[layer, c])
                self._used[layer, c] = cell.resident_bytes[-1]
                if per_lookup:
                    hit[c, batches.lookups_in(which)] = cell.hit
        # Each batch changes the resident bytes of its own layer; the sum of all changes is the total.
        np.cumsum(resident, axis=1, out=resident)
        resident += used[:, None]
        return [
            Cell(int(budget), hits[c], resident[c], hit=hit[c] if per_lookup else None)
            for c, budget in enumerate(self._budgets)
        ]
