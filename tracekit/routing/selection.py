"""The rule by which a model selects experts from its router's logits."""

from dataclasses import dataclass

import numpy as np

from tracekit.trace.errors import TraceError


@dataclass(frozen=True)
class SelectionRule:
    """From router logits to the scores that top-k ranks, as llama.cpp computes them.

    The score is a gating function of the logits, plus a selection bias per expert where the model
    has one (DeepSeek-V3, LFM2, Ling). With expert groups (DeepSeek-V2 and V3), a group is worth the
    sum of its two best scores, in llama.cpp for both models, and the experts of all but the
    `n_group_used` best groups are masked.

    Attributes
    ----------
    gating : {"softmax", "sigmoid", "logits", "sqrt-softplus"} or None
        None where the trace does not say: every known gating ranks as the logits do.
    n_group, n_group_used : int
    """

    gating: str | None = None
    n_group: int = 1
    n_group_used: int = 1

    def gate(self, logits: np.ndarray) -> np.ndarray:
        """Return the gating function of `logits`, float32 of the same shape [..., n_expert].

        Raises
        ------
        TraceError
            The trace does not say which gating the model has, or names one unknown here.
        """
        if self.gating == "logits":
            return logits
        if self.gating == "softmax":
            return softmax(logits)
        if self.gating == "sigmoid":
            sigmoid: np.ndarray = np.float32(1) / (np.float32(1) + np.exp(-logits))
            return sigmoid
        if self.gating == "sqrt-softplus":
            root: np.ndarray = np.sqrt(np.logaddexp(np.float32(0), logits))
            return root
        raise TraceError(
            f"The trace says that the gating function of its model is {self.gating!r}; selection "
            "with a bias or expert groups needs softmax, sigmoid, logits or sqrt-softplus there "
            "(model.gating in trace.json)."
        )

    def scores(self, logits: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """Return what top-k ranks: higher first, masked experts −inf.

        Without bias and groups the logits themselves are returned: every gating rises with its
        logit, so the order is the same, and float32 does not saturate.

        Parameters
        ----------
        logits : float32 [T, n_expert]
        bias : float32 [n_expert], optional
            The layer's selection bias.
        """
        grouped = self.n_group > 1 and self.n_group_used < self.n_group
        if bias is None and not grouped:
            return logits
        scores = self.gate(logits)
        if bias is not None:
            scores = scores + bias
        return self._masked(scores) if grouped else scores

    def _masked(self, scores: np.ndarray) -> np.ndarray:
        groups = scores.reshape(len(scores), self.n_group, -1)
        best = np.partition(groups, -2, axis=2)[:, :, -2:] if groups.shape[2] > 1 else groups
        worth = best.sum(axis=2)
        order = np.argsort(-worth, axis=1, kind="stable")
        masked = groups.copy()
        np.put_along_axis(masked, order[:, self.n_group_used :, None], -np.inf, axis=1)
        return masked.reshape(scores.shape)

    def weights(self, logits: np.ndarray) -> np.ndarray:
        """Return routing weights of the experts that were named, summing to 1 in each row.

        Parameters
        ----------
        logits : float32 [T, k]
            Router logits of the named experts only.
        """
        if self.gating in (None, "softmax", "logits"):
            return softmax(logits)
        return normalised(self.gate(logits))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax of `logits` along the last axis."""
    return normalised(np.exp(logits - logits.max(axis=-1, keepdims=True)))


def normalised(shares: np.ndarray) -> np.ndarray:
    """Return `shares` scaled to sum to 1 along the last axis."""
    sums_to_one: np.ndarray = shares / shares.sum(axis=-1, keepdims=True)
    return sums_to_one
