"""static-hot as published: learned on the very routings it is scored on."""

import numpy as np

from tracekit.predictors.base import register
from tracekit.predictors.static_hot import StaticHot
from tracekit.routing.blocks import Block


@register
class StaticHotInSample(StaticHot):
    """static-hot learned and scored on the same decode routings: flattering, but often published.

    As published for the phone traces, each turn's first decoded token is left out, so that it is
    scored on the same routings as prev-token.
    """

    name = "static-hot-insample"
    short_name = "hot*"
    summary = "static-hot learned on what it is scored on, as it is often published: flattering"
    by_default = False
    knows_answer = True
    in_sample = True

    def learn(self, block: Block, fold: int, reading: int) -> None:
        """Learn from the tokens that are scored."""
        super().learn(block if block.before else block.cut(1, len(block)), fold, reading)

    def ranks(self, block: Block) -> np.ndarray:
        return block.has_previous
