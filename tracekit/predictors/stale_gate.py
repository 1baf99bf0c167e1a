"""The target layer's router on the gate input of a layer before it."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.routing.blocks import Block


@register
class StaleGate(Predictor):
    """Multiply an earlier layer's gate input by the router matrix of the layer to predict.

    Every layer only nudges the residual stream, so the gate input of layer l − h is a stale version
    of that of layer l. It needs no training, and reaches no layer below the horizon h. Published as
    the predictor of FATE (78.8 % of slots on DeepSeek-V2-Lite).
    """

    name = "stale-gate"
    short_name = "stale"
    summary = "the layer's router on the gate input of the layer `horizon` before it"
    needs = ("gate_input", "router_matrix")
    has_horizon = True
    gives_logits = True

    def scores(self, block: Block, layer: int) -> np.ndarray:
        return self.routers.logits(layer, block.gate_input[:, layer - self.horizon])
