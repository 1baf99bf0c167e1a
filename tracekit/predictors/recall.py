"""What past tokens selected that routed alike so far."""

import numpy as np

from tracekit.predictors.base import register
from tracekit.predictors.learning.recalling import Recalling
from tracekit.routing.blocks import Block


@register
class Recall(Recalling):
    """Let past tokens vote, the more the more alike their experts were at the last layers that ran.

    Routing is mostly a matter of which token it is and in what context, and the layers that have run
    give that away. So a past token weighs exp(15 · a), where a is the share of slots that it has in
    common with this token at the last six layers up to the one `horizon` before; the weights of the
    last 2,000 tokens sum to 1. An expert's score is the weight of the tokens that selected it at the
    layer to predict, and half the layer's average selection: a mix of a fast and a slow average, as
    in the policy that evicts by what followed. Prompt tokens are in the history too, where they
    reached the layer. With horizon ``token`` nothing of the token has run: a is then the share that
    the token before it has in common with the token before the past one, over all layers.

    It reads expert ids only, so it runs on every trace and in every engine, and learns while it runs:
    no turn is held out, and the very first token is unscored.

    Related: FineMoE (fMoE, EuroSys 2026) keeps *expert maps*, the gate distributions of iterations, and
    searches them by prompt embedding and by trajectory to guide prefetching; MoE-Infinity matches
    expert activation matrices of whole sequences. This takes neither distributions nor embeddings,
    works within a single run, and is scored slot by slot.
    """

    name = "recall"
    summary = "what past tokens selected that routed alike so far, learned while it runs"
    looks_before_token = True

    def ranks(self, block: Block) -> np.ndarray:
        return self._past.knows(block)

    def scores(self, block: Block, layer: int) -> np.ndarray:
        """Return the vote, and the habit."""
        return self._past.vote(block, layer)

    @property
    def size_bytes(self) -> int:
        """A device carries the ids of the history, and the averages."""
        return self._past.size_bytes
