"""The fresh-gate control: a check of the probe, not a prediction."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.routing.blocks import Block


@register
class Control(Predictor):
    """Multiply a layer's own gate input by its own router matrix: the stale gate, not stale.

    It has to be 100 % of what the model selected. Less means that the recording or this scorer is
    wrong, or that the model selects by a rule that the trace does not describe.
    """

    name = "ctrl"
    summary = "the layer's router on its own gate input; must be 100 %"
    needs = ("gate_input", "router_matrix")
    gives_logits = True
    in_time = False
    knows_answer = True
    is_control = True

    def scores(self, block: Block, layer: int) -> np.ndarray:
        return self.routers.logits(layer, block.gate_input[:, layer])
