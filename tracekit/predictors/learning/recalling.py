"""The part that predictors share which let similar past tokens vote: parameters, and the history."""

from dataclasses import dataclass
from typing import ClassVar

from tracekit.predictors.base import Horizon
from tracekit.predictors.learning.similar_tokens import SimilarTokens
from tracekit.predictors.online import OnlinePredictor
from tracekit.routing.blocks import Block
from tracekit.routing.passed import Passed
from tracekit.routing.routers import Routers


@dataclass(frozen=True)
class RecallParams:
    """Parameters of `Recall`.

    Attributes
    ----------
    history : int
        How many past tokens vote, prompt tokens too.
    layers : int
        How many of the layers that have run are compared.
    sharpness : float
        A past token weighs exp(sharpness × the share of these layers' slots in common).
    habit : float
        What the layer's recent average selection adds to the vote.
    """

    history: int = 2000
    layers: int = 6
    sharpness: float = 15.0
    habit: float = 0.5

    def __post_init__(self) -> None:
        for name in ("history", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more")
        for name in ("sharpness", "habit"):
            if not 0 <= getattr(self, name) <= 1e6:
                raise ValueError(f"{name} must be a number from 0 to 1e6")


@dataclass(frozen=True)
class WeighedParams(RecallParams):
    """Parameters of a predictor that adds the vote to logits.

    Attributes
    ----------
    history : int
        How many past tokens vote, prompt tokens too.
    layers : int
        How many of the layers that have run are compared.
    sharpness : float
        A past token weighs exp(sharpness × the share of these layers' slots in common).
    habit : float
        What the layer's recent average selection adds to the vote.
    weight : float or None
        What the whole vote adds to a logit; None: as the predictor finds it.
    """

    weight: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weight is not None and not 0 <= self.weight <= 1e6:
            raise ValueError("weight must be a number from 0 to 1e6")


class Recalling(OnlinePredictor):
    """An online predictor with a history of tokens that vote."""

    has_horizon: ClassVar[bool] = True
    Params = RecallParams
    params: RecallParams

    def __init__(
        self,
        routers: Routers,
        horizon: Horizon = 1,
        seed: int = 0,
        params: RecallParams | None = None,
    ):
        super().__init__(routers, horizon, seed, params)
        self._past = SimilarTokens(
            routers.n_layers,
            routers.n_expert,
            routers.top_k,
            self.params.history,
            self.params.layers,
            self.params.sharpness,
            self.params.habit,
            None if self.before_token else self.horizon,
        )

    def forget(self) -> None:
        self._past.forget()

    def take_in(self, tokens: Passed) -> None:
        self._past.take_in(tokens)

    def meet(self, block: Block) -> None:
        self._past.meet(block)
