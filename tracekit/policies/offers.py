"""What may go, and the cheapest of it: helpers of the kernels that evict by value.

Every key has an *offer*: what keeping it is worth, or `NONE` where it cannot go. Offers are not
negative, and such floats are ordered as their bits are, read as integers. The minima are taken of
those, since a compiler turns that into vector instructions.
"""

import numpy as np

from tracekit.kernels import inlined

NONE = np.float32(np.inf)


def nearness_of(n_layers: int) -> np.ndarray:
    """Return what a use counts that is 0, 1, … layers away, ``2^(-d / L)``, float32 [L]."""
    nearness: np.ndarray = 2.0 ** (-np.arange(n_layers) / n_layers)
    return nearness.astype(np.float32)


@inlined
def least_of(bits: np.ndarray, layer: int | np.int32, n_expert: int) -> np.int32:
    """Return the least offer of `layer`."""
    least = np.int32(0x7FFFFFFF)
    for offer in bits[layer * n_expert : (layer + 1) * n_expert]:
        least = min(least, offer)
    return least


@inlined
def cheapest_of(
    bits: np.ndarray,
    touched: np.ndarray,
    layer: int | np.int32,
    n_expert: int,
    least: np.int32,
) -> np.int32:
    """Return the key of `layer` with the offer `least`; of several the one touched longest ago."""
    base = layer * n_expert
    here = bits[base : base + n_expert]
    n_found = 0
    found = np.int32(-1)
    for e in range(n_expert):
        if here[e] == least:
            n_found += 1
            found = np.int32(e)
    if n_found > 1:
        for e in range(n_expert):
            if here[e] == least and touched[base + e] < touched[base + found]:
                found = np.int32(e)
    return base + found


@inlined
def next_to_go(least: np.ndarray, nearness: np.ndarray, scaled: np.ndarray, layer: int) -> np.int32:
    """Return the layer whose cheapest resident is worth least after `layer`; ties the one furthest away.

    `scaled` [L] is room for the offers of the layers in the order in which they run.
    """
    later = least[layer + 1 :]
    near = scaled[: later.size]
    for away in range(later.size):
        near[away] = later[away] * nearness[away]
    far = scaled[later.size :]
    far_nearness = nearness[later.size :]
    for other in range(far.size):
        far[other] = least[other] * far_nearness[other]
    bits = scaled.view(np.int32)
    lowest = np.int32(0x7FFFFFFF)
    for offer in bits:
        lowest = min(lowest, offer)
    found = np.int32(0)
    for away in range(bits.size):
        if bits[away] == lowest:
            found = np.int32(away)
    return layer + 1 + found if found < later.size else found - later.size
