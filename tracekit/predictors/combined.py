"""Stale gate, token table and the previous token's logits in one fit."""

import numpy as np

from tracekit.predictors.base import register
from tracekit.predictors.scoring.blocks import Block
from tracekit.predictors.scoring.ridge import RidgeSums
from tracekit.predictors.scoring.token_counts import TokenCounts
from tracekit.predictors.stale_gate import StaleGate
from tracekit.predictors.stale_gate_fit import SUMS_LIMIT_BYTES, StaleGateFit


@register
class Combined(StaleGateFit):
    """Correct the stale logits by what they, the token table and the previous token's logits say.

    A ridge regression per layer on the real minus the stale logits, as in stale-gate-fit; the token
    table stands in it as how often each expert was selected for the token id. The table that a
    training row sees leaves out the row's own fold, or it would be surer than it will be later, and
    the fold that is held out: so each fold held out has sums of its own.
    """

    name = "combined"
    summary = "stale-gate-fit, token-table and the previous token's logits in one fit"
    needs = ("gate_input", "logits", "token", "router_matrix")
    readings = 2
    strength = 0.03

    @property
    def n_features(self) -> int:
        """See `StaleGateFit.n_features`."""
        return 3 * self.routers.n_expert

    def fold_limit(self) -> int:
        """See `LearnedPredictor.fold_limit`."""
        sums = RidgeSums.size_bytes(self.n_features, self.routers.n_expert)
        return int(np.clip(SUMS_LIMIT_BYTES // (sums * self.routers.n_layers), 2, 8))

    def begin(self, n_folds: int, holding_out: bool) -> None:
        """See `LearnedPredictor.begin`."""
        self._too_few = None
        self._table = TokenCounts(n_folds, self.routers.n_layers, self.routers.n_expert)
        held = range(n_folds) if holding_out else [None]
        self._sums_without = {fold: self._no_sums() for fold in held}

    def learn(self, block: Block, fold: int, reading: int) -> None:
        """See `LearnedPredictor.learn`: first the table, then the fit."""
        if reading == 0:
            self._table.add(block.token, block.experts, fold)
            return
        rows = block.has_previous
        for layer in range(self.horizon, self.routers.n_layers):
            stale = StaleGate.scores(self, block, layer)
            previous = block.previous("logits", layer)
            difference = (block.logits[:, layer] - stale)[rows]
            for held, sums in self._sums_without.items():
                if held != fold:
                    table = self._table.frequency(block.token, layer, {fold, held})
                    sums[layer].add([stale[rows], table[rows], previous[rows]], difference)

    def hold_out(self, fold: int | None) -> None:
        """See `LearnedPredictor.hold_out`."""
        self._held, self._fits, self._means = fold, {}, {}
        for layer, sums in self._sums_without[fold].items():
            if sums.rows >= self.min_rows:
                self._fits[layer] = sums.solve(self.strength)
                self._means[layer] = sums.feature_means[-self.routers.n_expert :]
            else:
                self._too_few = sums.rows

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """See `Predictor.scores`; a turn's first token takes mean logits for the previous ones."""
        stale = StaleGate.scores(self, block, layer)
        if layer not in self._fits:
            return stale
        coefficients, intercepts = self._fits[layer]
        table = self._table.frequency(block.token, layer, {self._held})
        previous = block.previous("logits", layer)
        previous[~block.has_previous] = self._means[layer]
        return stale + np.concatenate([stale, table, previous], axis=1) @ coefficients + intercepts

    @property
    def size_bytes(self) -> int:
        """See `LearnedPredictor.size_bytes`: coefficients, and a table of counts of 2 bytes."""
        table = 2 * self._table.n_ids * self.routers.n_layers * self.routers.n_expert
        return super().size_bytes + table

    @property
    def notes(self) -> tuple[str, ...]:
        """See `LearnedPredictor.notes`."""
        return (*self._table.notes, *super().notes)
