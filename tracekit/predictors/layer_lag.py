"""What a layer some layers back selected for the same token."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.predictors.base import LearnedPredictor, register
from tracekit.predictors.learning.repeated import scores_in_order, weights_of
from tracekit.routing.blocks import Block
from tracekit.routing.routers import Routers
from tracekit.trace.errors import UsageError

_COUNTS_BYTES = 256 << 20


@register
class LayerLag(LearnedPredictor):
    """Name the expert ids that the MoE layer `lag` layers back selected for this token, no more.

    An id means nothing from one layer to another, unless the model was built so that it does, for
    instance from copies of the same layers. The lag of each layer is learned on other turns: of all
    lags from the horizon on, it is the one at which the two layers had the most selected ids in
    common; ties go to the shortest. A lag shorter than the horizon is not known in time, so the
    layers below the horizon are unscored. A lag that is given is taken for every layer: nothing is
    learned, and the layers below the lag are unscored.

    It needs no gate input. Measured on a phone's trace of Qwen3-30B-A3B (48 layers, 6 of 128
    experts): 12 layers back names 45.3 %, and 58 to 74 % at layers 18 to 41; in another token, nine
    steps before, those 12 layers back share 17.5 %. At the other layers it names 3 to 12 %, and with a lag
    of 11 or 13 about 4 %; chance is 4.7 %. ::

        tracekit predict qwen.route.csv --predictor layer-lag,prev-token --param layer-lag.lag=12
    """

    name = "layer-lag"
    short_name = "lag"
    summary = "the ids that a layer some layers back selected, how many is learned on other turns"
    has_horizon = True

    @dataclass(frozen=True)
    class Params:
        """`lag`: MoE layers back, for every layer; None: learned for each."""

        lag: int | None = None

        def __post_init__(self) -> None:
            if self.lag is not None and self.lag < 1:
                raise ValueError("lag must be 1 or more")

    params: Params

    def __init__(
        self, routers: Routers, horizon: int = 1, seed: int = 0, params: Params | None = None
    ):
        super().__init__(routers, horizon, seed, params)
        lag = self.params.lag
        if lag is None:
            return
        if lag >= routers.n_layers:
            raise UsageError(
                f"A layer-lag.lag of {lag} reaches past the model: it has {routers.n_layers} MoE "
                f"layers, so the furthest is {routers.n_layers - 1}."
            )
        if lag < horizon:
            raise UsageError(
                f"What a layer selected is known {lag} layers ahead with a layer-lag.lag of {lag}, "
                f"not {horizon}; take a lag of the horizon or more."
            )
        self.readings = 0
        self._lags = [lag] * routers.n_layers

    def reaches(self, layer: int) -> bool:
        return layer >= (self.params.lag or self.horizon)

    def fold_limit(self) -> int:
        """Return for how many groups there is memory: each has counts for every two layers."""
        return int(np.clip(_COUNTS_BYTES // (8 * self.routers.n_layers**2), 2, 32))

    def begin(self, n_folds: int, held_out: Sequence[frozenset[int]]) -> None:
        n_layers = self.routers.n_layers
        self._common = np.zeros((n_folds, n_layers, n_layers), np.int64)

    def learn(self, block: Block, fold: int, reading: int) -> None:
        """Count the ids that a layer and the one `lag` before it both selected."""
        experts = block.experts.transpose(1, 0, 2).astype(np.intp)
        whole_words = -(-self.routers.n_expert // 64) * 64
        chosen = np.zeros((*experts.shape[:2], whole_words), bool)
        np.put_along_axis(chosen, experts, True, axis=2)
        bits = np.packbits(chosen, axis=2).view(np.uint64)
        for lag in range(self.horizon, len(bits)):
            in_common = np.bitwise_count(bits[lag:] & bits[:-lag])
            self._common[fold, lag:, lag] += in_common.sum(axis=(1, 2), dtype=np.int64)

    def hold_out(self, folds: frozenset[int]) -> None:
        others = [fold for fold in range(len(self._common)) if fold not in folds]
        unreached = [0] * self.horizon
        self._lags = unreached + self._best_lags(self._common[others].sum(axis=0))

    def _best_lags(self, common: np.ndarray) -> list[int]:
        """Return the lag of each layer from the horizon on, of counts [L, L] by layer and lag."""
        return [
            self.horizon + int(common[layer, self.horizon : layer + 1].argmax())
            for layer in range(self.horizon, len(common))
        ]

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return the slot order of that layer, −inf for what it did not select."""
        return scores_in_order(block.experts[:, layer - self._lags[layer]], self.routers.n_expert)

    def weights(
        self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray
    ) -> np.ndarray | None:
        """Return what they weighed there; None of a trace without weights."""
        if block.weights is None:
            return None
        source = layer - self._lags[layer]
        experts, weights = block.experts[:, source], block.weights[:, source]
        return weights_of(experts, weights, named, self.routers.n_expert)

    @property
    def size_bytes(self) -> int:
        """A device carries a lag of 2 bytes for each layer."""
        return 2 * self.routers.n_layers

    @property
    def notes(self) -> tuple[str, ...]:
        """Say which lag most layers take, by all that was learned."""
        lags = self._best_lags(self._common.sum(axis=0))
        most = max(lags, key=lags.count)
        return (f"a lag of {most} is best for {lags.count(most)} of {len(lags)} layers",)
