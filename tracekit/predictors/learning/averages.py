"""How often each layer has selected each expert of late: a fast and a slow average, mixed.

In: what tokens selected, in order. Out: two averages, which kernels carry along.
"""

import numpy as np

from tracekit.kernels import inlined

# The fast average forgets half in 1.4 tokens and the slow one in 17; they are mixed at one to four.
FAST, SLOW, FAST_SHARE = 0.4, 0.04, 0.2


def no_averages(n_layers: int, n_expert: int, top_k: int) -> np.ndarray:
    """Return the averages before the first token: k / n_expert; float64 [2, L, n_expert]."""
    return np.full((2, n_layers, n_expert), top_k / n_expert)


@inlined
def one_more(fast: np.ndarray, slow: np.ndarray, selected: np.ndarray) -> None:
    """Take what a token selected at a layer into the layer's averages."""
    for e in range(fast.size):
        fast[e] *= 1 - FAST
        slow[e] *= 1 - SLOW
    for slot in range(selected.size):
        fast[selected[slot]] += FAST
        slow[selected[slot]] += SLOW


@inlined
def mixed(fast: float, slow: float) -> float:
    """Return the average of an expert."""
    return FAST_SHARE * fast + (1 - FAST_SHARE) * slow
