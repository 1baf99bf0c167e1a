"""What the layer selected for the token before."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.learning.repeated import scores_in_order, weights_of
from tracekit.routing.blocks import Block


@register
class PrevToken(Predictor):
    """Name what the same layer selected for the previous decoded token of the turn, and no more.

    The first decoded token of a turn is unscored.
    """

    name = "prev-token"
    short_name = "prev"
    summary = "what the layer selected for the token before"
    repeats_previous_token = True

    def ranks(self, block: Block) -> np.ndarray:
        return block.has_previous

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return the previous slot order, −inf for what was not selected."""
        return scores_in_order(block.previous("experts", layer), self.routers.n_expert)

    def weights(
        self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray
    ) -> np.ndarray | None:
        """Return what they weighed then; None of a trace without weights."""
        if block.weights is None:
            return None
        experts, weights = block.previous("experts", layer), block.previous("weights", layer)
        return weights_of(experts, weights, named, self.routers.n_expert)
