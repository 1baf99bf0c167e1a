"""The stale gate with a linear correction per layer, fitted on other turns."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tracekit.predictors.base import LearnedPredictor, register
from tracekit.predictors.learning.logits import as_features
from tracekit.predictors.learning.ridge import Fit, RidgeSums, affordable_groups, best_fit
from tracekit.routing.blocks import Block

# Below this a fit lost to plain stale-gate on a model of 32 experts, whatever the penalty.
MIN_ROWS = 256


@register
class StaleGateFit(LearnedPredictor):
    """Add to the stale logits what a ridge regression says of the real minus the stale ones.

    For each layer the regression sees the stale logits and the source layer's own logits, which the
    engine has computed anyway. These are 2 × n_expert features, so a fit is small whatever the
    model's width, and its sums fit in memory however long the trace is. It fits the *difference*, so
    that plain stale-gate remains where the rows say nothing: with fewer than `MIN_ROWS` of them, and
    in a layer where no penalty gives a fit that does better than none on turns it has not seen.
    """

    name = "stale-gate-fit"
    summary = "stale-gate with a linear correction per layer, fitted on other turns"
    short_name: ClassVar[str | None] = "fit"
    needs: ClassVar[tuple[str, ...]] = ("gate_input", "logits", "router_matrix")
    has_horizon = True
    gives_logits = True

    @property
    def n_features(self) -> int:
        """Features of the regression."""
        return 2 * self.routers.n_expert

    def fold_limit(self) -> int:
        """Return how many groups are affordable: each takes fits of its own."""
        return affordable_groups(self.n_features, self.routers.n_expert, self.routers.n_layers)

    def begin(self, n_folds: int, held_out: Sequence[frozenset[int]]) -> None:
        self._sums = [self._no_sums() for _ in range(n_folds)]
        self._start_fits()

    def _stale_logits(self, block: Block, layer: int) -> np.ndarray:
        return self.routers.logits(layer, block.gate_input[:, layer - self.horizon])

    def _no_sums(self) -> dict[int, RidgeSums]:
        return {
            layer: RidgeSums(self.n_features, self.routers.n_expert)
            for layer in self._fitted_layers
        }

    @property
    def _fitted_layers(self) -> list[int]:
        return [layer for layer in range(self.routers.n_layers) if self.reaches(layer)]

    def _source_features(self, block: Block, layer: int) -> np.ndarray:
        """Return the logits of the source layer as features."""
        source = layer - self.horizon
        is_known = self.routers.knows(source, "router_matrix")
        return as_features(block.logits[:, source], is_known)

    def _start_fits(self) -> None:
        self._fits: dict[int, Fit] = {}
        self._fewest_rows: int | None = None
        self._tried = self._no_better = 0

    def learn(self, block: Block, fold: int, reading: int) -> None:
        for layer, sums in self._sums[fold].items():
            stale = as_features(self._stale_logits(block, layer))
            difference = as_features(block.logits[:, layer]) - stale
            sums.add([stale, self._source_features(block, layer)], difference)

    def hold_out(self, folds: frozenset[int]) -> None:
        self._fits = {}
        others = [sums for fold, sums in enumerate(self._sums) if fold not in folds]
        for layer in self._fitted_layers:
            halves = [RidgeSums(self.n_features, self.routers.n_expert) for _ in range(2)]
            for i, sums in enumerate(others):
                halves[i % 2] += sums[layer]
            self._fit(layer, *halves)

    def _fit(self, layer: int, one: RidgeSums, other: RidgeSums) -> None:
        rows = one.rows + other.rows
        if rows < MIN_ROWS or min(one.rows, other.rows) < MIN_ROWS // 4:
            self._fewest_rows = min(rows, self._fewest_rows or rows)
            return
        self._tried += 1
        fit = best_fit(one, other)
        if fit is None:
            self._no_better += 1
        else:
            self._fits[layer] = fit

    def scores(self, block: Block, layer: int) -> np.ndarray:
        stale = self._stale_logits(block, layer)
        if layer not in self._fits:
            return stale
        coefficients, intercepts = self._fits[layer]
        n = self.routers.n_expert
        correction = as_features(stale) @ coefficients[:n]
        correction += self._source_features(block, layer) @ coefficients[n:]
        fitted: np.ndarray = stale + correction + intercepts
        return fitted

    @property
    def size_bytes(self) -> int:
        """A device carries coefficients of 4 bytes, and nothing where nothing was fitted."""
        if not self._tried:
            return 0
        layers = len(self._fitted_layers)
        return 4 * layers * (self.n_features + 1) * self.routers.n_expert

    @property
    def notes(self) -> tuple[str, ...]:
        sentences = []
        if self._fewest_rows is not None:
            sentences.append(
                f"it is plain stale-gate{' where' if self._tried else ', as'} only "
                f"{self._fewest_rows} rows were left to fit on: a fit takes {MIN_ROWS}, and a "
                "quarter of them in either half of the turns"
            )
        if self._no_better:
            sentences.append(
                f"{self._no_better} of {self._tried} fits of a layer were left out, for they did "
                "no better than plain stale-gate on turns they had not seen"
            )
        return tuple(sentences)
