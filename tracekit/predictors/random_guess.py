"""The floor: experts at random."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.scoring.blocks import Block


@register
class RandomGuess(Predictor):
    """Order the experts at random, anew for each routing: k / n_expert of the slots on average.

    The order is a hash of seed, turn, step, layer and expert, so that it does not depend on how the
    trace is cut into blocks or on the number of threads.
    """

    name = "random-guess"
    summary = "experts at random (seeded): the floor, k / n_expert"

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """See `Predictor.scores`."""
        place = _mixed(np.uint64(self.seed & 0xFFFFFFFF) << np.uint64(32) | np.uint64(block.turn))
        place = _mixed(place ^ (block.step.astype(np.uint64) << np.uint64(16) | np.uint64(layer)))
        experts = np.arange(self.routers.n_expert, dtype=np.uint64)
        mixed = _mixed(place[:, None] ^ _mixed(experts))
        return (mixed >> np.uint64(40)).astype(np.float32)  # 24 bits: exact in float32


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return the finaliser of the SplitMix64 generator of `x`, uint64."""
    x = np.atleast_1d(x) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
