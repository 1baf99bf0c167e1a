"""Layers run in a ring: of entries of the same age, evict the one whose layer runs last."""

from collections.abc import Sequence

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import StateArray, register
from tracekit.policies.fed import FedPolicy, KernelRun, Run
from tracekit.policies.model import Model
from tracekit.policies.recency import append, new_lists, pop_cold, unlink


@register
class Ring(FedPolicy):
    """Evict the oldest entry by rounds; of equal ages, the one whose layer comes round last.

    The age of an entry is the number of batches of its own layer since the batch that touched it
    last: how often its layer has come round without using it. While a token is decoded, two kinds
    of entries have age 0: those that this token has used so far, and those that the token before
    used at the layers still to run. Entries that the token before used at a layer that has run,
    and that this token did not use there, have age 1. A pass of a prompt is one round, however
    many tokens it has. A layer that a pass leaves out does not age.

    Of equal ages, the victim is of the layer that comes round last: the layer that has just run,
    then the layer before it, and so on backwards to the layer that runs next. Within one layer,
    the entry touched longest ago goes first, as in LRU: for a decoded token that is the heaviest
    slot, for a prompt it is what the prompt's tail did not touch.

    Age alone cannot tell apart the entries that one round touched. LRU counts touches instead of
    rounds, so it evicts the layer that comes round first, and never hits where a round does not
    fit. In a loop the best choice is the opposite, the most recently used entry, and the order of
    the layers makes that choice here, only where age does not decide. A model with one MoE layer
    has rounds of one batch: then this is LRU.

    With ``--bypass`` what a batch has just used has age 0 as well, and its layer comes round last:
    it is dropped at once where nothing older is left.
    """

    name = "ring"
    summary = "evicts what its layer passed over most often, ties the layer that comes round last"
    can_bypass = True

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        return (
            StateArray(
                "touched", "L × E", 4 * n_layers * n_expert, "the round in which each was used last"
            ),
        )

    def start(self, model: Model, budgets: np.ndarray) -> Run:
        n_keys, n_layers = model.n_keys, model.n_layers
        return KernelRun(
            budgets,
            _ring,
            state=lambda: (
                *new_lists(n_keys + n_layers),
                np.zeros(n_keys, np.bool_),
                np.zeros(n_layers, np.int32),
                np.zeros(n_keys, np.int32),
                np.full(n_layers, -1, np.int32),
                np.zeros(1, np.int64),
            ),
            inputs=lambda batches: (
                batches.keys,
                batches.batch_start,
                batches.layer,
                batches.expert_bytes,
                batches.n_expert,
            ),
        )


# Each layer has its residents in a list of its own in the order of last touch, so only the first
# entry of a list can be the victim, and one number says how old that entry is (-1: the list is
# empty). A layer's entries age when the layer is loaded and at no other time. The search for a
# victim goes backwards from the layer that has just run and takes the first of the oldest. The
# batch's own entries have age 0, and the other entries of their layer are older, so the batch is
# protected by leaving out age 0 of its layer. `loads` counts the batches of each layer so far, and
# `touched` is what it was when each key was touched last.
@kernel
def _ring(
    keys: np.ndarray,
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    expert_bytes: np.ndarray,
    n_expert: int,
    after: np.ndarray,
    before: np.ndarray,
    is_resident: np.ndarray,
    loads: np.ndarray,
    touched: np.ndarray,
    oldest: np.ndarray,
    total: np.ndarray,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    n_layers = expert_bytes.size
    head = n_layers * n_expert  # the list of layer l has its sentinel at head + l
    used = total[0]
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
                unlink(after, before, key)
            else:
                is_resident[key] = True
                used += expert_bytes[layer]
            touched[key] = loads[layer]
            append(after, before, end, key)
        first = after[end]
        oldest[layer] = -1 if first == end else loads[layer] - touched[first]

        while used > budget:
            # Entries of this layer with age 0 are those that the batch has touched.
            victim = layer
            age = oldest[layer] if bypass or oldest[layer] > 0 else np.int32(-1)
            for i in range(1, n_layers):
                other = layer - i if layer >= i else layer - i + n_layers
                if oldest[other] > age:
                    victim = other
                    age = oldest[other]
            if age < 0:
                break
            end = head + victim
            is_resident[pop_cold(after, before, end)] = False
            used -= expert_bytes[victim]
            first = after[end]
            oldest[victim] = -1 if first == end else loads[victim] - touched[first]
        hits[b] = n_hits
        resident[b] = used
    total[0] = used
