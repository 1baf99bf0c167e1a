"""The stale gate, and the vote of past tokens that routed alike."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from tracekit.predictors.base import Horizon, LearnedPredictor, register
from tracekit.predictors.learning.recalling import Recalling, WeighedParams
from tracekit.routing.blocks import Block
from tracekit.routing.routers import Routers

# What the vote may count; one of these is learned.
WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0)


@register
class RecallGate(Recalling, LearnedPredictor):
    """Add the vote of `recall` to the stale logits.

    The logits say what this token's residual asks for, the vote what tokens like it got. For a
    model that selects by a softmax the order is that of log softmax(stale logits) + λ · vote; where
    it selects by another rule, with a bias or in groups, that rule ranks the logits with the vote.
    λ is `weight`, or else the one of `WEIGHTS` that names the most slots on other turns, by votes in which the turns
    that are held out have no part. With nothing to learn from it is 1 at horizon 1, and 2 from
    horizon 2 on. The history is learned while it runs, as by recall; while it is empty, this is
    stale-gate.
    """

    name = "recall-gate"
    summary = "stale-gate and recall's vote together, weighed on other turns"
    needs: ClassVar[tuple[str, ...]] = ("gate_input", "router_matrix")
    gives_logits = True
    Params = WeighedParams
    params: WeighedParams

    def __init__(
        self,
        routers: Routers,
        horizon: Horizon = 1,
        seed: int = 0,
        params: WeighedParams | None = None,
    ):
        super().__init__(routers, horizon, seed, params)
        given = self.params.weight
        self.readings = 1 if given is None else 0
        self._by_default = 1.0 if self.horizon == 1 else 2.0
        self._weight = self._by_default if given is None else given

    def fold_limit(self) -> int:
        """Return 4: the votes on a token are counted once for each group that is held out."""
        return 4

    def begin(self, n_folds: int, held_out: Sequence[frozenset[int]]) -> None:
        self._turns: list[set[int]] = [set() for _ in range(n_folds)]
        self._hits = {held: np.zeros(len(WEIGHTS), np.int64) for held in held_out}

    def learn(self, block: Block, fold: int, reading: int) -> None:
        """Count the slots that each weight names."""
        self._turns[fold].add(block.turn)
        for layer in range(self.routers.n_layers):
            if not self.reaches(layer):
                continue
            stale = self._stale_logits(block, layer)
            counted: dict[frozenset[int], np.ndarray] = {}
            for held, hits in self._hits.items():
                if fold in held:
                    continue
                silent = self._past.turns & frozenset().union(*(self._turns[f] for f in held))
                if silent not in counted:
                    vote = self._past.vote(block, layer, silent)
                    counted[silent] = self._named(block, layer, stale, vote)
                hits += counted[silent]

    def _named(self, block: Block, layer: int, stale: np.ndarray, vote: np.ndarray) -> np.ndarray:
        """Return how many selected experts are named with each of `WEIGHTS`."""
        selected, k = block.experts[:, layer].astype(np.intp), self.routers.top_k
        hits = np.zeros(len(WEIGHTS), np.int64)
        for i, weight in enumerate(WEIGHTS):
            order = self.routers.selection_scores(layer, stale + np.float32(weight) * vote)
            last_named = np.partition(order, -k, axis=1)[:, -k:].min(axis=1, keepdims=True)
            hits[i] = np.count_nonzero(np.take_along_axis(order, selected, axis=1) >= last_named)
        return hits

    def hold_out(self, folds: frozenset[int]) -> None:
        self._weight = self._best(self._hits[folds])

    def _best(self, hits: np.ndarray) -> float:
        """Return the best weight; of equally good ones that which is nearest to the default."""
        if not hits.any():
            return self._by_default
        best = [WEIGHTS[i] for i in np.flatnonzero(hits == hits.max())]
        return min(best, key=lambda weight: abs(weight - self._by_default))

    def _stale_logits(self, block: Block, layer: int) -> np.ndarray:
        return self.routers.logits(layer, block.gate_input[:, layer - self.horizon])

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return the stale logits, and the vote times its weight."""
        vote = self._past.vote(block, layer)
        scores: np.ndarray = self._stale_logits(block, layer) + np.float32(self._weight) * vote
        return scores

    @property
    def size_bytes(self) -> int:
        """A device carries what recall does, and the weight."""
        return self._past.size_bytes + 4

    @property
    def notes(self) -> tuple[str, ...]:
        """Say how much the vote counts."""
        weights = sorted({self._best(hits) for hits in self._hits.values()})
        several = f"{weights[0]:g} to {weights[-1]:g}" if len(weights) > 1 else f"{weights[0]:g}"
        return (f"the vote counts {several}",)
