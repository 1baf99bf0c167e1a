"""Stale gate, token table and the previous token's logits in one fit, and recall's vote."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tracekit.predictors.base import register
from tracekit.predictors.learning.logits import as_features
from tracekit.predictors.learning.recalling import Recalling, WeighedParams
from tracekit.predictors.learning.ridge import affordable_groups
from tracekit.predictors.learning.token_counts import TokenCounts
from tracekit.predictors.stale_gate_fit import StaleGateFit
from tracekit.routing.blocks import Block


@register
class Combined(StaleGateFit, Recalling):
    """Correct the stale logits by what they, the token table and the previous token's logits say.

    There is a ridge regression per layer on the real minus the stale logits, as in stale-gate-fit.
    It sees the token table as how often each expert was selected for the token id. The table that a
    training row sees leaves out the row's own fold, since otherwise it would be surer than it will
    be later. It leaves out the fold that is held out too, so each fold held out has sums of its own.

    The vote of `recall`, learned while it runs, is added to the fitted logits: `weight` times, and by
    default 0.5 times at horizon 1 and once from horizon 2 on, half of what recall-gate begins with,
    for the fit knows a part of it already. One to four layers ahead that names 79.7, 72.7, 68.2 and
    64.3 % of the slots of the bundled trace, and 77.8, 69.4, 64.0 and 59.8 % without the vote
    (``--param combined.weight=0``). ::

        tracekit predict data/tiny-moe-64e.trace --predictor combined --horizon 1,2,3,4
    """

    name = "combined"
    summary = "stale-gate-fit, token-table and the previous token's logits in one fit, and a vote"
    short_name = None
    needs: ClassVar[tuple[str, ...]] = ("gate_input", "logits", "token", "router_matrix")
    readings = 2
    Params = WeighedParams
    params: WeighedParams

    @property
    def _weight(self) -> float:
        if self.params.weight is not None:
            return self.params.weight
        return 0.5 if self.horizon == 1 else 1.0

    @property
    def n_features(self) -> int:
        """Features of the regression: stale logits, token table, previous logits."""
        return 3 * self.routers.n_expert

    def fold_limit(self) -> int:
        """Return how many groups are affordable: each has two sums of its own."""
        n = self.routers.n_expert
        return affordable_groups(self.n_features, n, self.routers.n_layers, copies=2)

    def begin(self, n_folds: int, held_out: Sequence[frozenset[int]]) -> None:
        self._table = TokenCounts(n_folds, self.routers.n_layers, self.routers.n_expert)
        self._halves_without = {held: (self._no_sums(), self._no_sums()) for held in held_out}
        self._start_fits()

    def learn(self, block: Block, fold: int, reading: int) -> None:
        """Learn the table in the first reading, the fit in the second."""
        if reading == 0:
            self._table.add(block.token, block.experts, fold)
            return
        rows = block.has_previous
        for layer in self._fitted_layers:
            stale = as_features(self._stale_logits(block, layer))
            previous = as_features(block.previous("logits", layer))
            difference = (as_features(block.logits[:, layer]) - stale)[rows]
            for held, halves in self._halves_without.items():
                if fold in held:
                    continue
                table = self._table.frequency(block.token, layer, held | {fold})
                # The folds that are not held out alternate between the halves.
                half = (fold - sum(f < fold for f in held)) % 2
                halves[half][layer].add([stale[rows], table[rows], previous[rows]], difference)

    def hold_out(self, folds: frozenset[int]) -> None:
        self._held, self._fits, self._means = folds, {}, {}
        one, other = self._halves_without[folds]
        for layer in one:
            self._fit(layer, one[layer], other[layer])
            if layer in self._fits:
                # Fitting has left the sums of all rows in the first half.
                self._means[layer] = one[layer].feature_means[-self.routers.n_expert :]

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return fitted logits and the vote; a turn's first token takes mean logits as previous ones."""
        stale = self._stale_logits(block, layer)
        if layer not in self._fits:
            return stale
        coefficients, intercepts = self._fits[layer]
        table = self._table.frequency(block.token, layer, self._held)
        previous = as_features(block.previous("logits", layer))
        previous[~block.has_previous] = self._means[layer]
        features = np.concatenate([as_features(stale), table, previous], axis=1)
        vote = np.float32(self._weight) * self._past.vote(block, layer)
        fitted: np.ndarray = stale + features @ coefficients + intercepts + vote
        return fitted.astype(np.float32)

    @property
    def size_bytes(self) -> int:
        """A device carries coefficients, a table of counts of 2 bytes, and what recall does."""
        table = 2 * self._table.n_ids * self.routers.n_layers * self.routers.n_expert
        return super().size_bytes + table + self._past.size_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        return (*self._table.notes, *super().notes)
