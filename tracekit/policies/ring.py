"""Layers run in a ring: of what is equally old, evict what comes round last."""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register


@register
class Ring(Policy):
    """Evict the oldest entry, its age counted in rounds, of equals the one that comes round last.

    The age of an entry is the number of batches of its own layer since the one that touched it
    last: how often its layer has come round and passed it over. While a token is decoded, what it
    has used so far, and what the token before used at the layers still to run, is of age 0; what
    the token before used at a layer that has run, and this one did not, of age 1. A pass of a
    prompt is one round, however many tokens it has; a layer that it leaves out does not age.

    Of equal ages the layer goes that comes round last: the one that has just run, then the one
    before it, and so on backwards through the last layer to the one that runs next. Of one layer
    the entry touched longest ago goes, as in LRU: of one decoded token the heaviest slot, of a
    prompt what its tail did not touch.

    Age alone cannot tell apart what one round touched, and LRU, which counts touches and not
    rounds, then evicts the layer that comes round first: so it never hits where a round does not
    fit. In a loop the opposite is the best choice (the most recently used goes first), and here
    it decides just where age does not. A model with one MoE layer has rounds of one batch: then
    this is LRU.
    """

    name = "ring"
    summary = "evicts what its layer passed over most often, ties the layer that comes round last"

    def simulate(self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False):
        """See `Policy.simulate`."""
        cells = []
        for budget in budgets:
            hits = np.empty(len(batches), np.int32)
            resident = np.empty(len(batches), np.int64)
            hit = np.empty(len(batches.keys) if per_lookup else 0, np.bool_)
            _ring(
                batches.keys,
                batches.batch_start,
                batches.layer,
                batches.expert_bytes,
                batches.n_expert,
                int(budget),
                hits,
                resident,
                hit,
            )
            cells.append(Cell(int(budget), hits, resident, hit=hit if per_lookup else None))
        return cells


# Each layer has its residents in a doubly linked list in the order of last touch, so that only its
# first entry can be the one to evict, and one number says how old that is (-1: the layer has none).
# A layer's entries age when it is loaded and at no other time. The search goes from the layer that
# has just run backwards and takes the first of the oldest. What the batch touched is of age 0 and
# of its layer, and what else is left of that layer is older: that is all the protection it takes.
@kernel
def _ring(keys, batch_start, batch_layer, expert_bytes, n_expert, budget, hits, resident, hit):
    n_layers = expert_bytes.size
    head = n_layers * n_expert  # the list of layer l has its sentinel at head + l
    after = np.arange(head + n_layers).astype(np.int32)
    before = after.copy()
    is_resident = np.zeros(head, np.bool_)
    loads = np.zeros(n_layers, np.int32)  # batches of each layer so far
    touched = np.zeros(head, np.int32)  # what `loads` was when each key was touched last
    oldest = np.full(n_layers, -1, np.int32)
    used = np.int64(0)
    for b in range(batch_layer.size):
        layer = np.int64(batch_layer[b])
        end = head + layer
        loads[layer] += 1
        n_hits = np.int64(0)
        for p in range(batch_start[b], batch_start[b + 1]):
            key = keys[p]
            if hit.size:
                hit[p] = is_resident[key]
            if is_resident[key]:
                n_hits += 1
                after[before[key]] = after[key]
                before[after[key]] = before[key]
            else:
                is_resident[key] = True
                used += expert_bytes[layer]
            touched[key] = loads[layer]
            after[before[end]] = key
            before[key] = before[end]
            after[key] = end
            before[end] = key
        first = after[end]
        oldest[layer] = -1 if first == end else loads[layer] - touched[first]

        while used > budget:
            # Of age 0 are those of this layer that the batch has touched.
            victim = layer
            age = oldest[layer] if oldest[layer] > 0 else np.int32(-1)
            for i in range(1, n_layers):
                other = layer - i if layer >= i else layer - i + n_layers
                if oldest[other] > age:
                    victim = other
                    age = oldest[other]
            if age < 0:
                break
            end = head + victim
            key = after[end]
            after[end] = after[key]
            before[after[key]] = end
            is_resident[key] = False
            used -= expert_bytes[victim]
            first = after[end]
            oldest[victim] = -1 if first == end else loads[victim] - touched[first]
        hits[b] = n_hits
        resident[b] = used
