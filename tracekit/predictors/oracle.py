"""What the model will select: the best that acting on a prediction could do."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.scoring.blocks import Block
from tracekit.predictors.scoring.repeated import scores_in_order, weights_of


@register
class Oracle(Predictor):
    """Name exactly what the model selects. No engine can: it needs the future.

    As the source of a policy that acts on predictions it tells a bad predictor from a useless
    mechanism.
    """

    name = "oracle"
    summary = "what the model will select, read from the future: for policies that act on it"

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """See `Predictor.scores`: the slot order."""
        return scores_in_order(block.experts[:, layer], self.routers.n_expert)

    def weights(self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray):
        """See `Predictor.weights`: the real ones; None of a trace without weights."""
        if block.weights is None:
            return None
        experts, weights = block.experts[:, layer], block.weights[:, layer]
        return weights_of(experts, weights, named, self.routers.n_expert)
