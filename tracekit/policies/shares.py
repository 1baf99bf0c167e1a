"""A budget in equal shares per MoE layer, each layer a cache of its own."""

import numpy as np

from tracekit.policies.base import Batches, Cell, Policy


def one_layer(batches: Batches, layer: int) -> tuple[np.ndarray, np.ndarray, Batches]:
    """Take the batches of one MoE layer out of a run.

    Returns
    -------
    which : int64 [B']
        The layer's batches among those of the run.
    lookups : int64 [N']
        The layer's lookups among those of the run.
    batches : Batches
        The same as a run of a model with that layer alone; its keys are the experts.
    """
    which = np.flatnonzero(batches.layer == layer)
    n_lookups = batches.batch_start[which + 1] - batches.batch_start[which]
    batch_start = np.concatenate([[0], np.cumsum(n_lookups)])
    lookups = np.arange(batch_start[-1]) + np.repeat(
        batches.batch_start[which] - batch_start[:-1], n_lookups
    )
    alone = Batches(
        keys=batches.keys[lookups] - np.int32(layer * batches.n_expert),
        admit_rank=batches.admit_rank[lookups],
        batch_start=batch_start,
        layer=np.zeros(len(which), np.int32),
        turn=batches.turn[which],
        pass_id=batches.pass_id[which],
        step=batches.step[which],
        phase=batches.phase[which],
        expert_bytes=batches.expert_bytes[layer : layer + 1],
        layer_ids=batches.layer_ids[layer : layer + 1],
        n_expert=batches.n_expert,
        top_k=batches.top_k,
    )
    return which, lookups, alone


def simulate_in_shares(
    policy: Policy, batches: Batches, budgets: np.ndarray, per_lookup: bool
) -> list[Cell]:
    """Replay `policy` on every layer alone, each with an equal share of the budget.

    A share that is smaller than a layer's routing overflows, as any budget does; nothing makes up
    for it elsewhere, so the layers together may hold more than the budget.
    """
    n_layers = len(batches.expert_bytes)
    shape = (len(budgets), len(batches))
    hits = np.zeros(shape, np.int32)
    resident = np.zeros(shape, np.int64)
    hit = np.zeros((len(budgets), len(batches.keys) if per_lookup else 0), np.bool_)
    for layer in range(n_layers):
        which, lookups, alone = one_layer(batches, layer)
        for c, cell in enumerate(policy.simulate(alone, budgets // n_layers, per_lookup)):
            hits[c, which] = cell.hits
            resident[c, which] = np.diff(cell.resident_bytes, prepend=0)
            if per_lookup:
                hit[c, lookups] = cell.hit
    # Each batch changes what its own layer holds; the sum over the layers is the sum of the changes.
    np.cumsum(resident, axis=1, out=resident)
    return [
        Cell(int(budget), hits[c], resident[c], hit=hit[c] if per_lookup else None)
        for c, budget in enumerate(budgets)
    ]
