"""The experts that a layer selects most."""

from collections.abc import Sequence

import numpy as np

from tracekit.predictors.base import LearnedPredictor, register
from tracekit.routing.blocks import Block
from tracekit.routing.selection import normalised


@register
class StaticHot(LearnedPredictor):
    """Name the experts most selected at the layer, whatever the token, learned on other turns."""

    name = "static-hot"
    short_name = "hot"
    summary = "the experts that the layer selected most, learned on other turns"

    def begin(self, n_folds: int, held_out: Sequence[frozenset[int]]) -> None:
        self._counts = np.zeros((n_folds, self.routers.n_layers, self.routers.n_expert), np.int64)

    def learn(self, block: Block, fold: int, reading: int) -> None:
        for layer in range(self.routers.n_layers):
            self._counts[fold, layer] += np.bincount(
                block.experts[:, layer].ravel(), minlength=self.routers.n_expert
            )

    def hold_out(self, folds: frozenset[int]) -> None:
        others = [fold for fold in range(len(self._counts)) if fold not in folds]
        self._scores = self._counts[others].sum(axis=0).astype(np.float32)

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return how often each expert was selected."""
        return np.tile(self._scores[layer], (len(block), 1))

    def weights(
        self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray
    ) -> np.ndarray:
        """Return weights in proportion to the counts."""
        return normalised(np.take_along_axis(scores, named, axis=1) + np.float32(1))

    @property
    def size_bytes(self) -> int:
        """A device carries k ids of 2 bytes for each layer."""
        return 2 * self.routers.n_layers * self.routers.top_k
