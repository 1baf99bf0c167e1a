"""What the model will select: the best that acting on a prediction could do."""

from dataclasses import dataclass

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.learning.draws import drawn
from tracekit.predictors.learning.repeated import scores_in_order, weights_of
from tracekit.routing.blocks import Block


@register
class Oracle(Predictor):
    """Name what the model selects. No engine can: it needs the future.

    As the source of a policy that acts on predictions it tells a bad predictor from a useless
    mechanism; and with an accuracy below 1, how good a predictor must be for the mechanism to pay.
    Each slot is then named right with that probability, independently, and else takes an expert
    that was not selected, at random. The mistakes of a real predictor lie closer together.
    """

    name = "oracle"
    summary = "what the model will select, read from the future: for policies that act on it"

    @dataclass(frozen=True)
    class Params:
        """`accuracy`: the share of slots named right."""

        accuracy: float = 1.0

        def __post_init__(self):
            if not 0 <= self.accuracy <= 1:
                raise ValueError("accuracy is a share from 0 to 1")

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """See `Predictor.scores`: the slot order."""
        n_expert, selected = self.routers.n_expert, block.experts[:, layer].astype(np.intp)
        scores = scores_in_order(selected, n_expert)
        if self.params.accuracy == 1:
            return scores
        k = selected.shape[1]
        draws = drawn(self.seed, block, layer, k + n_expert)
        mistaken, others = draws[:, :k] >= self.params.accuracy, draws[:, k:]
        np.put_along_axis(others, selected, -1, axis=1)
        wrong = np.argsort(-others, axis=1, kind="stable")[:, :k]
        token, slot = np.nonzero(mistaken)
        scores[token, selected[token, slot]] = -np.inf
        # A model that selects most of its experts may not have as many others.
        token, slot = np.nonzero(mistaken & (np.take_along_axis(others, wrong, axis=1) >= 0))
        scores[token, wrong[token, slot]] = k - slot
        return scores

    def weights(self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray):
        """See `Predictor.weights`: the real ones; None of a trace without, or of mistakes."""
        if block.weights is None or self.params.accuracy < 1:
            return None
        experts, weights = block.experts[:, layer], block.weights[:, layer]
        return weights_of(experts, weights, named, self.routers.n_expert)
