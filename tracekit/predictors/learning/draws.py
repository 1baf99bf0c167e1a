"""Random numbers of routings, the same however a trace is cut into blocks and spread over threads."""

import numpy as np

from tracekit.routing.blocks import Block


def drawn(seed: int, block: Block, layer: int, count: int) -> np.ndarray:
    """Draw numbers for each token of a block at a layer, float32 [T, count], from 0 and below 1.

    They are a hash of seed, turn, step, layer and place, of 24 bits: exact in float32.
    """
    place = _mixed(np.uint64(seed & 0xFFFFFFFF) << np.uint64(32) | np.uint64(block.turn))
    place = _mixed(place ^ (block.step.astype(np.uint64) << np.uint64(16) | np.uint64(layer)))
    mixed = _mixed(place[:, None] ^ _mixed(np.arange(count, dtype=np.uint64)))
    return (mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return the finaliser of the SplitMix64 generator of `x`, uint64."""
    x = np.atleast_1d(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
