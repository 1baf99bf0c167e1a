"""What a predictor is given, what it gives back, and how to add one.

A predictor is given blocks of decoded tokens and gives back a score for every expert. It knows
nothing of who scores it or acts on it. A predictor is one small class. This one is complete; saved as
``same_ids.py`` it runs as ``tracekit predict run.trace --predictor same_ids:SameIds``:

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
from typing import Any, ClassVar, Final, Literal

import numpy as np

from tracekit.registry import Registry
from tracekit.routing.blocks import Block
from tracekit.routing.routers import Routers

# The horizon of a predictor that is asked before the token has begun.
TOKEN: Final = "token"
Horizon = int | Literal["token"]


@dataclass(frozen=True)
class NoParams:
    """The parameters of a predictor that has none."""


class Predictor(ABC):
    """Names the experts of a routing before its layer runs.

    Derive, set the class attributes, write `scores`, and ``@register`` it. All that other code needs
    to know about a predictor is in these attributes; only `name` and `summary` have no default.

    Attributes
    ----------
    name : str
        What the user types.
    summary : str
        One line for ``tracekit policies``.
    short_name : str or None
        What heads its column of a table; None: the name.
    by_default : bool
        It is scored where the user names no predictor.
    Params : type
        A frozen dataclass of its parameters.
    needs : tuple of str
        Columns it reads besides ``experts``: ``weights``, ``logits``, ``gate_input`` of the
        routings; ``token``, ``embedding`` of the steps; ``router_matrix``, ``norm_weight`` of the
        layers.
    has_horizon : bool
        It looks ahead from a layer that lies `horizon` MoE layers before the one it predicts.
    looks_before_token : bool
        It has a horizon, and can be asked before the token has begun too: at horizon ``token``.
        Then `before_token` is set, and `horizon` is the number of MoE layers, so that it looks from
        no layer of the token.
    gives_logits : bool
        `scores` are router logits, to be ranked by the model's own selection rule. Otherwise they
        are ranked as they stand.
    in_time : bool
        A policy can act on it: its guess is there before the layer runs, or is taken to be.
    knows_answer : bool
        Its scores depend on the routing that they predict, or on later ones. Without this attribute
        the conformance suite refuses such a predictor; with it, nothing calls the predictor the best.
    is_control : bool
        It checks the recording and must name 100 % of what the model selects; a report says first
        when it does not.
    is_floor : bool
        It is what a guess without any knowledge reaches.
    repeats_previous_token : bool
        It repeats what the token before selected. Reports compare others with it, and advise to act
        on it last: what it names is mostly in the cache already.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    short_name: ClassVar[str | None] = None
    by_default: ClassVar[bool] = True
    Params: ClassVar[type[Any]] = NoParams
    needs: ClassVar[tuple[str, ...]] = ()
    has_horizon: ClassVar[bool] = False
    looks_before_token: ClassVar[bool] = False
    gives_logits: ClassVar[bool] = False
    in_time: ClassVar[bool] = True
    knows_answer: ClassVar[bool] = False
    is_control: ClassVar[bool] = False
    is_floor: ClassVar[bool] = False
    repeats_previous_token: ClassVar[bool] = False

    def __init__(self, routers: Routers, horizon: Horizon = 1, seed: int = 0, params: Any = None):
        self.routers = routers
        self.before_token = horizon == TOKEN
        self.horizon: int = routers.n_layers if horizon == TOKEN else horizon
        self.seed = seed
        self.params: Any = self.Params() if params is None else params

    @classmethod
    def is_rival(cls) -> bool:
        """Say whether it may be called the best of several: it guesses, and has not seen the answer."""
        return not (cls.knows_answer or cls.is_control or cls.is_floor)

    @classmethod
    def cannot_run_on(cls, routers: Routers) -> str | None:
        """Say in one sentence why it cannot run on a model, as one that is too large; None if it can."""
        return None

    def reaches(self, layer: int) -> bool:
        """Say whether the layer, an index among the MoE layers, can be predicted at all.

        One that does not select by logits has no router to multiply by.
        """
        of_layers = [name for name in self.needs if name in ("router_matrix", "norm_weight")]
        if not all(self.routers.knows(layer, name) for name in of_layers):
            return False
        if self.before_token or not self.has_horizon:
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

        A block may be cut anywhere, and several layers are asked for at once, on several threads: so
        scores depend on nothing that was left from another call, nor on how long the block is.

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

    def weights(
        self, block: Block, layer: int, scores: np.ndarray, named: np.ndarray
    ) -> np.ndarray | None:
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
    """A predictor that learns, on turns other than those it is scored on.

    The tokens of the turns are dealt into folds. Every block of every fold is learned once in each
    of the `readings`. Before a turn is scored, `hold_out` is called with the turn's folds, and the
    predictor must then score as if it had never seen them.

    Attributes
    ----------
    readings : int
        How many times the training blocks are read; 0 of one that has nothing to learn after all.
    in_sample : bool
        It is learned on all routings and scored on the same: nothing is held out. Set `knows_answer`
        too.
    """

    readings: int = 1
    in_sample: ClassVar[bool] = False

    def fold_limit(self) -> int:
        """Return for how many groups of turns there is memory; each is held out on its own."""
        return 32

    @abstractmethod
    def begin(self, n_folds: int, held_out: Sequence[frozenset[int]]) -> None:
        """Make room for `n_folds` folds.

        Parameters
        ----------
        n_folds : int
        held_out : sequence of frozenset of int
            The sets of folds that will be held out, one after the other; only the empty set where
            nothing has to be held out.
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
        """Plain sentences about the fit: where it fell back, what it left out."""
        return ()


PREDICTORS: Registry[Predictor] = Registry("predictor", Predictor)
register = PREDICTORS.register
