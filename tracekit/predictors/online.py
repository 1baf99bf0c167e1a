"""Predictors that learn while a run goes on: they see every token in the order it ran.

Such a predictor is asked about a pass before it learns that pass, so nothing has to be held out: what
it knows is what an engine has seen by then. This one is complete; saved as ``again.py`` it runs as
``tracekit predict run.trace --predictor again:Again``:

>>> import numpy as np
>>> from tracekit.predictors import PlainOnlinePredictor
>>> class Again(PlainOnlinePredictor):
...     name = "again"
...     summary = "the experts that the layer has selected most so far"
...
...     def start(self):
...         self.counts = np.zeros((self.routers.n_layers, self.routers.n_expert))
...
...     def guess(self, token, layer):
...         return self.counts[layer]
...
...     def learn(self, experts):
...         for layer, selected in enumerate(experts):
...             self.counts[layer, selected[selected >= 0]] += 1
"""

from abc import abstractmethod

import numpy as np

from tracekit.predictors.base import Predictor
from tracekit.routing.blocks import Block
from tracekit.routing.passed import Passed, passed_of
from tracekit.trace.errors import UsageError


class OnlinePredictor(Predictor):
    """Learns from the tokens that have passed, and is asked about those that come next.

    It sees the tokens of the whole trace in the order they ran: prompt tokens too; rejected drafts
    and cancelled prompts not. The calls are `forget` once, then `take_in` and `meet` in the order in
    which the tokens ran. After `meet`, `scores` is asked about the block or a part of it, layer by
    layer, on several threads. For each token it may use what passed before the block, and the tokens
    of the block that stayed and whose pass ended before the pass of that token began.

    Derive from `PlainOnlinePredictor` to be asked token by token, in plain Python; from
    `PassByPassPredictor` to answer for a pass at a time; from this class to answer for a stretch of
    passes at once, as a fast kernel does.
    """

    @abstractmethod
    def forget(self) -> None:
        """Know nothing: the first token is to come."""

    @abstractmethod
    def take_in(self, tokens: Passed) -> None:
        """Learn from tokens that have passed and that nobody asks about: those of a prompt."""

    @abstractmethod
    def meet(self, block: Block) -> None:
        """Be ready to score `block`, and learn from it once the next tokens come.

        Parameters
        ----------
        block : Block
            Whole passes. Its tokens with ``kept`` are to be learned, and no others.
        """

    @property
    def size_bytes(self) -> int | None:
        """Size of what a device would have to carry; None: not known."""
        return None


class PassByPassPredictor(OnlinePredictor):
    """An online predictor that answers for one pass at a time: write `forget`, `take_in`, `answer`."""

    @abstractmethod
    def answer(self, one_pass: Block) -> np.ndarray | None:
        """Score every expert for the tokens of one pass.

        Parameters
        ----------
        one_pass : Block
            T tokens: one, or several that were drafted.

        Returns
        -------
        float32 [T, L, n_expert] or None
            Finite at all layers that the predictor `reaches`; None: it cannot say anything yet, and
            the tokens are unscored.
        """

    def meet(self, block: Block) -> None:
        self._start = block.start
        self._ranked = np.zeros(len(block), np.bool_)
        shape = len(block), self.routers.n_layers, self.routers.n_expert
        self._scores = np.zeros(shape, np.float32)
        edges = (np.flatnonzero(np.diff(block.decode_pass)) + 1).tolist()
        for first, last in zip([0, *edges], [*edges, len(block)], strict=True):
            one_pass = block.cut(first, last)
            answer = self.answer(one_pass)
            if answer is not None:
                self._scores[first:last] = answer
                self._ranked[first:last] = True
            self.take_in(passed_of(one_pass))

    def ranks(self, block: Block) -> np.ndarray:
        first = block.start - self._start
        return self._ranked[first : first + len(block)]

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return what was answered when the block was met."""
        first = block.start - self._start
        return self._scores[first : first + len(block), layer]


class PlainOnlinePredictor(PassByPassPredictor):
    """An online predictor in plain Python, one token at a time: write `start`, `guess`, `learn`."""

    @abstractmethod
    def start(self) -> None:
        """Know nothing: the first token is to come."""

    @abstractmethod
    def guess(self, token: Block, layer: int) -> np.ndarray:
        """Score every expert for a token at a layer.

        Parameters
        ----------
        token : Block
            One token: ``token.experts[0, layer - self.horizon]`` are the experts that it selected
            there. Read only what is known before the layer runs.
        layer : int
            Index among the MoE layers; one that the predictor `reaches`.

        Returns
        -------
        array [n_expert]
            Higher is more likely, ties go to the lower expert id; −inf: it cannot name this expert.
        """

    @abstractmethod
    def learn(self, experts: np.ndarray) -> None:
        """Take in a token after its pass.

        Parameters
        ----------
        experts : int64 [L, k]
            What it selected at each MoE layer; −1 at layers that a prompt's token did not reach.
        """

    def knows_enough(self) -> bool:
        """Say whether it can be asked: from the first token on. Until then tokens are unscored."""
        return self._n_learned > 0

    def forget(self) -> None:
        self._n_learned = 0
        self.start()

    def take_in(self, tokens: Passed) -> None:
        for experts, reached in zip(tokens.experts.astype(np.int64), tokens.reached, strict=True):
            experts[~reached] = -1
            self.learn(experts)
            self._n_learned += 1

    def answer(self, one_pass: Block) -> np.ndarray | None:
        """Ask about each token at each layer."""
        if not self.knows_enough():
            return None
        n_layers, n_expert = self.routers.n_layers, self.routers.n_expert
        scores = np.zeros((len(one_pass), n_layers, n_expert), np.float32)
        for row in range(len(one_pass)):
            token = one_pass.cut(row, row + 1)
            for layer in range(n_layers):
                if self.reaches(layer):
                    scores[row, layer] = self._guessed(token, layer)
        return scores

    def _guessed(self, token: Block, layer: int) -> np.ndarray:
        guess = self.guess(token, layer)
        try:
            scores = np.asarray(guess)
        except ValueError:  # lists of several lengths
            scores = np.empty((0, 0))  # of no shape that is right
        if scores.shape != (self.routers.n_expert,) or scores.dtype.kind not in "biuf":
            raise UsageError(
                f"guess() of the predictor {self.name!r} must return {self.routers.n_expert} numbers, "
                f"one for each expert, not {_described(guess)}."
            )
        return scores


def _described(guess: object) -> str:
    """Say in a few words what was returned."""
    if isinstance(guess, np.ndarray):
        return f"an array of shape {guess.shape} of {guess.dtype}"
    return "None" if guess is None else f"a {type(guess).__name__}"
