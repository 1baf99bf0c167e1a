"""The stale gate with a linear correction per layer, fitted on other turns."""

import numpy as np

from tracekit.predictors.base import LearnedPredictor, register
from tracekit.predictors.scoring.blocks import Block
from tracekit.predictors.scoring.ridge import RidgeSums
from tracekit.predictors.stale_gate import StaleGate

SUMS_LIMIT_BYTES = 512 << 20


@register
class StaleGateFit(LearnedPredictor, StaleGate):
    """Add to the stale logits what a ridge regression says of the real minus the stale ones.

    For each layer the regression sees the stale logits and the source layer's own logits (which the
    engine has computed anyway): 2 × n_expert features, so it is small whatever the model's width,
    and its sums fit in memory however long the trace is. Fitting the *difference* makes plain
    stale-gate what it falls back to where the rows say nothing. With fewer rows than `min_rows` a
    fit is worse than none, and the stale logits are left as they are.
    """

    name = "stale-gate-fit"
    summary = "stale-gate with a linear correction per layer, fitted on other turns"
    needs = ("gate_input", "logits", "router_matrix")
    # Of 0.03, 0.1, 0.3 and 1.0 the best from 256 to 2,500 rows on a model of 32 experts.
    strength = 0.3

    @property
    def n_features(self) -> int:
        """Features of the regression."""
        return 2 * self.routers.n_expert

    @property
    def min_rows(self) -> int:
        """The fewest rows that a fit is made from."""
        return max(256, 2 * self.n_features)

    def fold_limit(self) -> int:
        """See `LearnedPredictor.fold_limit`."""
        sums = RidgeSums.size_bytes(self.n_features, self.routers.n_expert)
        return int(np.clip(SUMS_LIMIT_BYTES // (sums * self.routers.n_layers), 2, 32))

    def begin(self, n_folds: int, holding_out: bool) -> None:
        """See `LearnedPredictor.begin`."""
        self._too_few: int | None = None
        self._sums = [self._no_sums() for _ in range(n_folds)]

    def _no_sums(self) -> dict[int, RidgeSums]:
        layers = range(self.horizon, self.routers.n_layers)
        return {layer: RidgeSums(self.n_features, self.routers.n_expert) for layer in layers}

    def learn(self, block: Block, fold: int, reading: int) -> None:
        """See `LearnedPredictor.learn`."""
        for layer, sums in self._sums[fold].items():
            stale = StaleGate.scores(self, block, layer)
            own = block.logits[:, layer - self.horizon]
            sums.add([stale, own], block.logits[:, layer] - stale)

    def hold_out(self, fold: int | None) -> None:
        """See `LearnedPredictor.hold_out`."""
        self._fits = {}
        for layer in range(self.horizon, self.routers.n_layers):
            total = RidgeSums(self.n_features, self.routers.n_expert)
            for other, sums in enumerate(self._sums):
                if other != fold:
                    total.merge(sums[layer])
            if total.rows >= self.min_rows:
                self._fits[layer] = total.solve(self.strength)
            else:
                self._too_few = total.rows

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """See `Predictor.scores`."""
        stale = StaleGate.scores(self, block, layer)
        if layer not in self._fits:
            return stale
        coefficients, intercepts = self._fits[layer]
        own = block.logits[:, layer - self.horizon]
        n = self.routers.n_expert
        return stale + stale @ coefficients[:n] + own @ coefficients[n:] + intercepts

    @property
    def size_bytes(self) -> int:
        """See `LearnedPredictor.size_bytes`: coefficients of 4 bytes."""
        layers = self.routers.n_layers - self.horizon
        return 4 * layers * (self.n_features + 1) * self.routers.n_expert

    @property
    def notes(self) -> tuple[str, ...]:
        """See `LearnedPredictor.notes`."""
        if self._too_few is None:
            return ()
        return (
            f"it is plain stale-gate where only {self._too_few} rows were left to fit on: "
            f"a fit takes {self.min_rows}",
        )
