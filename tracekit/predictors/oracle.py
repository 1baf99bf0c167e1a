"""What the model will select: the best that acting on a prediction could do."""

from dataclasses import dataclass

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.predictors.learning.random_numbers import random_numbers
from tracekit.predictors.learning.repeated import scores_in_order, weights_of
from tracekit.routing.blocks import Block


@register
class Oracle(Predictor):
    """Name what the model selects. No engine can: it needs the future.

    As the source of a policy that acts on predictions it tells a bad predictor from a useless
    mechanism. With an accuracy below 1 it tells how good a predictor must be for the mechanism to
    pay: each slot is then named right with that probability, independently of the others, and
    otherwise names an expert at random that was not selected. A real predictor's mistakes lie closer
    together.
    """

    name = "oracle"
    summary = "what the model will select, read from the future: for policies that act on it"
    by_default = False
    knows_answer = True

    @dataclass(frozen=True)
    class Params:
        """`accuracy`: the share of slots named right."""

        accuracy: float = 1.0

        def __post_init__(self) -> None:
            if not 0 <= self.accuracy <= 1:
                raise ValueError("accuracy is a share from 0 to 1")

    params: Params

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return the slot order."""
        n_expert, selected = self.routers.n_expert, block.experts[:, layer].astype(np.intp)
        scores = scores_in_order(selected, n_expert)
        if self.params.accuracy == 1:
            return scores
        k = selected.shape[1]
        numbers = random_numbers(self.seed, block, layer, k + n_expert)
        mistaken, others = numbers[:, :k] >= self.params.accuracy, numbers[:, k:]
        np.put_along_axis(others, selected, -1, axis=1)
        wrong = np.argsort(-others, axis=1, kind="stable")[:, :k]
        token, slot = np.nonzero(mistaken)
        scores[token, selected[token, slot]] = -np.inf
        # A model that selects most of its experts may not have as many others.
        token, slot = np.nonzero(mistaken & (np.take_along_axis(others, wrong, axis=1) >= 0))
        scores[token, wrong[token, slot]] = k - slot
        return scores

    def weights(
        self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray
    ) -> np.ndarray | None:
        """Return the real ones; None of a trace without weights, and where it makes mistakes."""
        if block.weights is None or self.params.accuracy < 1:
            return None
        experts, weights = block.experts[:, layer], block.weights[:, layer]
        return weights_of(experts, weights, named, self.routers.n_expert)
