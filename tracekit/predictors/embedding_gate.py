"""Every layer's router on the token's embedding."""

import numpy as np

from tracekit.predictors.base import Predictor, register
from tracekit.routing.blocks import Block


@register
class EmbeddingGate(Predictor):
    """Multiply the token's embedding, normalised as the layer normalises, by the layer's router.

    Known before any layer runs, so it reaches layer 0, which a stale gate never can.
    """

    name = "embedding-gate"
    short_name = "embed"
    summary = "the layer's router on the token's embedding: known before any layer runs"
    needs = ("embedding", "router_matrix", "norm_weight")
    gives_logits = True

    def ranks(self, block: Block) -> np.ndarray:
        known: np.ndarray = ~np.isnan(block.embedding[:, 0])  # a null one is NaN in all its values
        return known

    def scores(self, block: Block, layer: int) -> np.ndarray:
        mean_square = np.square(block.embedding).mean(axis=1, keepdims=True)
        normalised = block.embedding / np.sqrt(mean_square + np.float32(self.routers.norm_eps))
        return self.routers.logits(layer, normalised * self.routers.norm_weight(layer))
