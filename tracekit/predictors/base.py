"""What a predictor is given and what it gives back; how to add one.

A predictor is one small class. This one is complete; saved as ``same_ids.py`` it runs as
``tracekit predict run.trace --predictor same_ids:SameIds``:

>>> import numpy as np
>>> from tracekit.predictors import Predictor
>>> class SameIds(Predictor):
...     name = "same-ids"
...     summary = "the expert ids that the MoE layer before has just selected"
...
...     def reaches(self, layer):
...         return layer > 0
...
...     def scores(self, block, layer):
...         scores = np.zeros((len(block), self.routers.n_expert), np.float32)
...         np.put_along_axis(scores, block.experts[:, layer - 1].astype(int), 1, axis=1)
...         return scores
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tracekit.registry import Registry
from tracekit.routing.blocks import Block
from tracekit.routing.routers import Routers


@dataclass(frozen=True)
class NoParams:
    """The parameters of a predictor that has none."""


@dataclass(frozen=True)
class FitReport:
    """What a fit cost.

    Attributes
    ----------
    rows : int
        Decoded tokens it learned from, those of held-out turns counted too.
    size_bytes : int
        Size of what a device would have to carry.
    seconds : float
        Time spent learning, reading the trace excluded.
    notes : tuple of str
        Plain sentences: where it fell back, what it left out.
    """

    rows: int
    size_bytes: int
    seconds: float
    notes: tuple[str, ...] = ()


class Predictor(ABC):
    """Names the experts of a routing before its layer runs.

    Derive, set the class attributes, write `scores`, and ``@register`` it.

    Attributes
    ----------
    name : str
        What the user types.
    summary : str
        One line for ``tracekit policies``.
    Params : type
        A frozen dataclass of its parameters.
    needs : tuple of str
        Columns it reads besides ``experts``: ``weights``, ``logits``, ``gate_input`` of the
        routings; ``token``, ``embedding`` of the steps; ``router_matrix``, ``norm_weight`` of the
        layers.
    has_horizon : bool
        It looks ahead from a layer that lies `horizon` MoE layers before the one it predicts.
    gives_logits : bool
        `scores` are router logits, to be ranked by the model's own selection rule. Otherwise they
        are ranked as they stand.
    in_time : bool
        Its guess is there before the layer runs. False of a control, which no policy can act on.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Params: ClassVar[type] = NoParams
    needs: ClassVar[tuple[str, ...]] = ()
    has_horizon: ClassVar[bool] = False
    gives_logits: ClassVar[bool] = False
    in_time: ClassVar[bool] = True

    def __init__(self, routers: Routers, horizon: int = 1, seed: int = 0, params: Any = None):
        self.routers = routers
        self.horizon = horizon
        self.seed = seed
        self.params = self.Params() if params is None else params

    def reaches(self, layer: int) -> bool:
        """Say whether the layer, an index among the MoE layers, can be predicted at all.

        One that does not select by logits has no router to multiply by.
        """
        of_layers = [name for name in self.needs if name in ("router_matrix", "norm_weight")]
        if not all(self.routers.knows(layer, name) for name in of_layers):
            return False
        if not self.has_horizon:
            return True
        of_source = [name for name in self.needs if name in ("gate_input", "norm_weight")]
        source = layer - self.horizon
        return source >= 0 and all(self.routers.knows(source, name) for name in of_source)

    def ranks(self, block: Block) -> np.ndarray:
        """Say which tokens of `block` can be ranked, bool [T]; the others count as unscored."""
        return np.ones(len(block), bool)

    @abstractmethod
    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Score every expert for each token of `block` at `layer`.

        Parameters
        ----------
        block : Block
            T tokens. A predictor reads of it only what is known before `layer` runs.
        layer : int
            Index among the MoE layers; one that it `reaches`.

        Returns
        -------
        float32 [T, n_expert]
            Higher is more likely, ties go to the lower expert id; −inf: it cannot name this
            expert. Rows of tokens that it does not rank may hold anything but NaN.
        """

    def weights(self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray):
        """Return predicted routing weights of the experts `named`, or None if it has no idea.

        Parameters
        ----------
        block, layer
            As for `scores`.
        scores : float32 [T, n_expert]
            What `scores` returned.
        named : int [T, k]
            The k best of them.

        Returns
        -------
        float32 [T, k] or None
            Each row sums to 1.
        """
        if not self.gives_logits:
            return None
        return self.routers.rule.weights(np.take_along_axis(scores, named, axis=1))


class LearnedPredictor(Predictor):
    """A predictor that is learned, on turns other than those it is scored on.

    The tokens of the turns are dealt into folds. Every block of every fold is learned once for each
    of `readings`; before a turn is scored, `hold_out` makes it as if its folds had never been seen.

    Attributes
    ----------
    readings : int
        How many times the training blocks are read; 0 of one that has nothing to learn after all.
    in_sample : bool
        It is learned on all routings and scored on the same: nothing is held out.
    """

    readings: ClassVar[int] = 1
    in_sample: ClassVar[bool] = False

    def fold_limit(self) -> int:
        """Return how many groups of turns can be kept apart in memory."""
        return 32

    @abstractmethod
    def begin(self, n_folds: int, held_out: Sequence[frozenset[int]]) -> None:
        """Make room for `n_folds` folds.

        Parameters
        ----------
        n_folds : int
        held_out : sequence of frozenset of int
            The sets of folds that will be held out, one after the other; of a predictor that is
            scored on other tokens than it learns from, the empty set.
        """

    @abstractmethod
    def learn(self, block: Block, fold: int, reading: int) -> None:
        """Take in the block, which belongs to `fold`, for the `reading`-th time (from 0)."""

    @abstractmethod
    def hold_out(self, folds: frozenset[int]) -> None:
        """Be ready to score what is in `folds`, one of the sets that `begin` was given."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Size of what a device would have to carry, for one fit."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth saying about the fit: where it fell back, what it left out."""
        return ()


PREDICTORS: Registry[Predictor] = Registry("predictor", Predictor)
register = PREDICTORS.register
