"""What the layer selected for the token before."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.scoring.blocks import Block


@register
class PrevToken(Predictor):
    """Name what the same layer selected for the previous decoded token of the turn, and no more.

    The first decoded token of a turn is unscored.
    """

    name = "prev-token"
    summary = "what the layer selected for the token before"

    def ranks(self, block: Block) -> np.ndarray:
        """See `Predictor.ranks`."""
        return block.has_previous

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """See `Predictor.scores`: the previous slot order, −inf for what was not selected."""
        before = block.previous("experts", layer).astype(np.intp)
        k = before.shape[1]
        scores = np.full((len(block), self.routers.n_expert), -np.inf, np.float32)
        order = np.broadcast_to(np.arange(k, 0, -1, dtype=np.float32), before.shape)
        np.put_along_axis(scores, before, order, axis=1)
        return scores

    def weights(self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray):
        """See `Predictor.weights`: what they weighed then; None of a trace without weights."""
        if block.weights is None:
            return None
        dense = np.full(scores.shape, np.nan, np.float32)
        before = block.previous("experts", layer).astype(np.intp)
        np.put_along_axis(dense, before, block.previous("weights", layer), axis=1)
        weights = np.take_along_axis(dense, named, axis=1)
        total = weights.sum(axis=1, keepdims=True)
        return np.divide(weights, total, out=np.full_like(weights, np.nan), where=total > 0)
