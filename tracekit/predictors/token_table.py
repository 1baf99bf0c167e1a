"""The experts most selected for a token id."""

from collections.abc import Sequence

import numpy as np

from tracekit.predictors.base import LearnedPredictor, register
from tracekit.predictors.learning.token_counts import TokenCounts
from tracekit.routing.blocks import Block
from tracekit.routing.selection import normalised


@register
class TokenTable(LearnedPredictor):
    """Name the experts most selected at the layer for this token id, learned on other turns.

    Known before any layer runs. A token id never seen gets the layer's most popular experts.
    """

    name = "token-table"
    short_name = "table"
    summary = "the experts most selected for this token id, learned on other turns"
    needs = ("token",)

    def begin(self, n_folds: int, held_out: Sequence[frozenset[int]]) -> None:
        self._table = TokenCounts(n_folds, self.routers.n_layers, self.routers.n_expert)

    def learn(self, block: Block, fold: int, reading: int) -> None:
        self._table.add(block.token, block.experts, fold)

    def hold_out(self, folds: frozenset[int]) -> None:
        self._without = folds

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return how often each expert is selected for the token."""
        return self._table.frequency(block.token, layer, self._without).astype(np.float32)

    def weights(
        self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray
    ) -> np.ndarray:
        """Return weights in proportion to the frequencies."""
        return normalised(np.take_along_axis(scores, named, axis=1) + np.float32(1e-6))

    @property
    def size_bytes(self) -> int:
        """A device carries k ids of 2 bytes for each token id and layer."""
        return 2 * self._table.n_ids * self.routers.n_layers * self.routers.top_k

    @property
    def notes(self) -> tuple[str, ...]:
        return self._table.notes
