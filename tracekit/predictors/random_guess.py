"""The floor: experts at random."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.learning.random_numbers import random_numbers
from tracekit.routing.blocks import Block


@register
class RandomGuess(Predictor):
    """Order the experts at random, anew for each routing: k / n_expert of the slots on average."""

    name = "random-guess"
    short_name = "random"
    summary = "experts at random (seeded): the floor, k / n_expert"
    is_floor = True

    def scores(self, block: Block, layer: int) -> np.ndarray:
        return random_numbers(self.seed, block, layer, self.routers.n_expert)
