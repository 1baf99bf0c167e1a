"""The floor: experts at random."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.learning.draws import drawn
from tracekit.routing.blocks import Block


@register
class RandomGuess(Predictor):
    """Order the experts at random, anew for each routing: k / n_expert of the slots on average."""

    name = "random-guess"
    summary = "experts at random (seeded): the floor, k / n_expert"

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """See `Predictor.scores`."""
        return drawn(self.seed, block, layer, self.routers.n_expert)
