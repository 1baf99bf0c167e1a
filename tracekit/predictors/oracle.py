"""What the model will select: the best that acting on a prediction could do."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.scoring.blocks import Block


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
        experts = block.experts[:, layer].astype(np.intp)
        scores = np.full((len(block), self.routers.n_expert), -np.inf, np.float32)
        order = np.broadcast_to(np.arange(experts.shape[1], 0, -1, dtype=np.float32), experts.shape)
        np.put_along_axis(scores, experts, order, axis=1)
        return scores

    def weights(self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray):
        """See `Predictor.weights`: the real ones; None of a trace without weights."""
        if block.weights is None:
            return None
        weights = block.weights[:, layer]  # the names are in slot order, as the weights are
        total = weights.sum(axis=1, keepdims=True)
        return np.divide(weights, total, out=np.full_like(weights, np.nan), where=total > 0)
