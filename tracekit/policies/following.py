"""What followed what: how likely each expert is to be used soon, learned from past routings alone.

In go the experts of each token at each layer, in the order they ran. Out comes a value for each
expert: its chance of use when its layer runs next, and some credit for later. Nothing here knows
which experts are resident.
"""

from typing import NamedTuple

import numpy as np

from tracekit.kernels import Whole, kernel
from tracekit.policies.model import Model

# Rates of the two running averages of use, and the share of the fast one in their mixture.
FAST = np.float32(0.4)
SLOW = np.float32(0.04)
FAST_SHARE = np.float32(0.2)
# A row of the table forgets at this rate, once it has been learned as often as that takes.
LEAST_RATE = 0.07
ONE = np.float32(1)


class Following(NamedTuple):
    """What has been learned; arrays of one model, L layers of E experts. A key is layer × E + expert.

    Attributes
    ----------
    fast, slow, average : float32 [L × E]
        How much of the time each expert is used: two running averages and their mixture.
    value : float32 [L × E]
        The chance that an expert is used when its layer runs next; plus, if it is not, half the
        chance one round later, a quarter the round after, and so on.
    table : float32 [R, E]
        A row for each key that some token has selected: how often each expert of the layer was
        among those of the next token. The first row is that of keys without one: all are alike.
    row_of : int32 [L × E]
        The row of each key; 0: it has none yet.
    learned : int32 [R]
        How often each row has been learned.
    context : int32 [L, k]
        The experts of the layer's last token; -1 before the first.
    """

    fast: np.ndarray
    slow: np.ndarray
    average: np.ndarray
    value: np.ndarray
    table: np.ndarray
    row_of: np.ndarray
    learned: np.ndarray
    context: np.ndarray


def nothing_learned(model: Model) -> Following:
    """Return the state before the first token: every expert of a layer is equally likely."""
    n_keys, n_expert = model.n_keys, model.n_expert
    even = np.float32(model.top_k / n_expert)
    # A row is given to a key when a token has selected it. Until then it takes no memory.
    table = np.empty((1 + n_keys, n_expert), np.float32)
    table[0] = even
    return Following(
        fast=np.full(n_keys, even),
        slow=np.full(n_keys, even),
        average=np.full(n_keys, even),
        value=np.full(n_keys, even),
        table=table,
        row_of=np.zeros(n_keys, np.int32),
        learned=np.zeros(len(table), np.int32),
        context=np.full((model.n_layers, model.top_k), -1, np.int32),
    )


@kernel
def learn(state: Following, n_rows: Whole, layer: int, experts: np.ndarray) -> Whole:
    """Learn one token's `experts` [k] at `layer`; `n_rows` rows are given out, return how many now are."""
    n_expert = state.table.shape[1]
    base = layer * n_expert
    context = state.context[layer]
    average = state.average[base : base + n_expert]
    if context[0] >= 0:
        for i in range(context.size):
            place = state.row_of[base + context[i]]
            if place == 0:
                place = n_rows
                n_rows += 1
                state.row_of[base + context[i]] = place
                # One by one: to copy a whole array takes numba longer to compile than all the rest.
                for e in range(n_expert):
                    state.table[place, e] = average[e]
            row = state.table[place]
            rate = np.float32(max(LEAST_RATE, 1.0 / (state.learned[place] + 2)))
            state.learned[place] += 1
            kept = ONE - rate
            for e in range(n_expert):
                row[e] *= kept
            for j in range(experts.size):
                row[experts[j]] += rate
    fast = state.fast[base : base + n_expert]
    slow = state.slow[base : base + n_expert]
    for e in range(n_expert):
        fast[e] *= ONE - FAST
        slow[e] *= ONE - SLOW
    for j in range(experts.size):
        fast[experts[j]] += FAST
        slow[experts[j]] += SLOW
        context[j] = experts[j]
    return n_rows


@kernel
def judge(state: Following, layer: int) -> None:
    """Set the average use and the value of every expert of `layer`, after its tokens were learned."""
    n_expert = state.table.shape[1]
    base = layer * n_expert
    fast = state.fast[base : base + n_expert]
    slow = state.slow[base : base + n_expert]
    average = state.average[base : base + n_expert]
    value = state.value[base : base + n_expert]
    context = state.context[layer]
    for e in range(n_expert):
        average[e] = FAST_SHARE * fast[e] + (ONE - FAST_SHARE) * slow[e]
        value[e] = np.float32(0)
    for i in range(context.size):
        row = state.table[state.row_of[base + context[i]]]
        for e in range(n_expert):
            value[e] += row[e]
    n = np.float32(context.size)
    for e in range(n_expert):
        chance = value[e] / n
        chance = ONE if chance > ONE else chance
        value[e] = chance + (ONE - chance) * (average[e] / (ONE + average[e]))
