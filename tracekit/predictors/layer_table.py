"""Which experts a layer selects after those of a layer before it, learned while the run goes on."""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.predictors.base import register
from tracekit.predictors.learning.averages import mixed, no_averages, one_more
from tracekit.predictors.online import PassByPassPredictor
from tracekit.routing.blocks import Block
from tracekit.routing.passed import Passed
from tracekit.routing.routers import Routers

# Tables that are larger than this are not kept.
_MOST_BYTES = 2 << 30


@dataclass(frozen=True)
class LayerTableParams:
    """Parameters of `LayerTable`.

    Attributes
    ----------
    rate : float
        How far a row moves towards what followed it; more while it has seen less than 1 / rate.
    """

    rate: float = 0.07

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError("rate is a share from 0 to 1")


@register
class LayerTable(PassByPassPredictor):
    """Name what most often followed the experts that the layer `horizon` before it has selected.

    For each layer there is a table with a row for each expert of the layer `horizon` before it: how
    often each expert of this layer was selected with it. A row moves by its `rate` towards what a
    token selects, faster while it is young, and begins as the layer's average. An expert's score is
    the mean of the rows of the experts that the source layer selected for this token.

    It is the simpler cousin of `recall`: it looks at one layer, and takes each of its experts alone.
    """

    name = "layer-table"
    summary = "what followed the experts of the layer `horizon` before, learned while it runs"
    has_horizon = True
    Params = LayerTableParams
    params: LayerTableParams

    @classmethod
    def cannot_run_on(cls, routers: Routers) -> str | None:
        n_bytes = _table_bytes(routers)
        if n_bytes <= _MOST_BYTES:
            return None
        return (
            f"{cls.name} keeps a share for every two experts of a layer, which is "
            f"{n_bytes / (1 << 30):.1f} GiB with {routers.n_expert} experts in {routers.n_layers} "
            "MoE layers, and it takes at most 2 GiB; use recall."
        )

    def forget(self) -> None:
        n_layers, n_expert = self.routers.n_layers, self.routers.n_expert
        self._table = np.zeros((n_layers, n_expert, n_expert), np.float32)
        self._seen = np.zeros((n_layers, n_expert), np.int64)
        self._averages = no_averages(n_layers, n_expert, self.routers.top_k)

    def take_in(self, tokens: Passed) -> None:
        experts, reached = map(np.ascontiguousarray, (tokens.experts, tokens.reached))
        rate, tables = self.params.rate, (self._table, self._seen, self._averages)
        _learn(experts, reached, self.horizon, rate, *tables)

    def answer(self, one_pass: Block) -> np.ndarray | None:
        """Return the mean of the rows; None before the first token."""
        if not self._seen.any():
            return None
        shape = len(one_pass), self.routers.n_layers, self.routers.n_expert
        scores = np.zeros(shape, np.float32)
        # A copy: it may be read-only, for which numba would compile a second time.
        experts = np.array(one_pass.experts, order="C")
        _answer(experts, self.horizon, self._table, self._seen, self._averages, scores)
        return scores

    @property
    def size_bytes(self) -> int:
        """A device carries 4 bytes for every two experts of a layer."""
        return _table_bytes(self.routers)


def _table_bytes(routers: Routers) -> int:
    return 4 * routers.n_layers * routers.n_expert**2


@kernel
def _learn(
    experts: np.ndarray,
    reached: np.ndarray,
    horizon: int,
    rate: float,
    table: np.ndarray,
    seen: np.ndarray,
    averages: np.ndarray,
) -> None:
    n_tokens, n_layers, k = experts.shape
    n_expert = table.shape[1]
    for t in range(n_tokens):
        for layer in range(n_layers):
            if not reached[t, layer]:
                continue
            fast, slow = averages[0, layer], averages[1, layer]
            if layer >= horizon and reached[t, layer - horizon]:
                for slot in range(k):
                    source = experts[t, layer - horizon, slot]
                    row = table[layer, source]
                    if seen[layer, source] == 0:
                        for e in range(n_expert):
                            row[e] = mixed(fast[e], slow[e])
                    step = np.float32(max(rate, 1 / (seen[layer, source] + 2)))
                    seen[layer, source] += 1
                    for e in range(n_expert):
                        row[e] *= 1 - step
                    for other in range(k):
                        row[experts[t, layer, other]] += step
            one_more(fast, slow, experts[t, layer])


@kernel
def _answer(
    experts: np.ndarray,
    horizon: int,
    table: np.ndarray,
    seen: np.ndarray,
    averages: np.ndarray,
    scores: np.ndarray,
) -> None:
    n_tokens, n_layers, k = experts.shape
    n_expert = scores.shape[2]
    for t in range(n_tokens):
        for layer in range(horizon, n_layers):
            fast, slow = averages[0, layer], averages[1, layer]
            score = scores[t, layer]
            for slot in range(k):
                source = experts[t, layer - horizon, slot]
                if seen[layer, source]:
                    for e in range(n_expert):
                        score[e] += table[layer, source, e]
                else:
                    for e in range(n_expert):
                        score[e] += mixed(fast[e], slow[e])
            for e in range(n_expert):
                score[e] /= k
