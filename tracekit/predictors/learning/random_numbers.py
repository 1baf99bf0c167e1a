"""Random numbers for routings; neither the cut into blocks nor the threads change them."""

import numpy as np

from tracekit.routing.blocks import Block


def random_numbers(seed: int, block: Block, layer: int, count: int) -> np.ndarray:
    """Return numbers for each token of a block at a layer, float32 [T, count], from 0 and below 1.

    They are a hash of seed, turn, step, layer and place, of 24 bits: exact in float32.
    """
    seed_and_turn = np.array([(seed & 0xFFFFFFFF) << 32 | block.turn], np.uint64)
    step_and_layer = block.step.astype(np.uint64) << np.uint64(16) | np.uint64(layer)
    routing = _mixed(_mixed(seed_and_turn) ^ step_and_layer)
    mixed = _mixed(routing[:, None] ^ _mixed(np.arange(count, dtype=np.uint64)))
    numbers: np.ndarray = (mixed >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
    return numbers


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return the finaliser of the SplitMix64 generator of `x`, uint64."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed
