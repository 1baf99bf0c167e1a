"""The stale gate with the norm weight of the layer it predicts."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.routing.blocks import Block


@register
class StaleGateRenorm(Predictor):
    """Undo the norm weight of the layer the gate input comes from, apply that of the target layer.

    A gate input is a normalised residual times its layer's norm weight, and those weights differ
    between layers.
    """

    name = "stale-gate-renorm"
    short_name = "renorm"
    summary = "stale-gate, with the norm weight of the layer it predicts"
    needs = ("gate_input", "router_matrix", "norm_weight")
    has_horizon = True
    gives_logits = True

    def scores(self, block: Block, layer: int) -> np.ndarray:
        source = layer - self.horizon
        undone = self.routers.norm_weight(source)
        # Where a norm weight is 0 the residual is lost: the gate input is 0 there, and stays so.
        ratio = np.divide(
            self.routers.norm_weight(layer), undone, out=np.zeros_like(undone), where=undone != 0
        )
        return self.routers.logits(layer, block.gate_input[:, source] * ratio)
