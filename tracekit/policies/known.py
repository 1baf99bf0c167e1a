"""What a policy may be given beside the run: guesses of what comes, and what was used elsewhere."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Guesses:
    """What a predictor names after each batch: the experts that the next routed layer will select.

    Row b is for the layer of the next batch; after the last layer it is for the first layer of the
    next token. Rows of prefill batches, and of batches after which nothing is predicted, hold -1.

    Attributes
    ----------
    keys : int32 [B, m]
        Predicted keys, best first; -1 where fewer than m are predicted.
    weights : float32 [B, m] or None
        Their predicted routing weights, summing to 1 over the first k; NaN beside -1. None from a
        predictor that only ranks.
    """

    keys: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Popularity:
    """How often each expert was used elsewhere: what an engine may know before a turn begins.

    Attributes
    ----------
    counts : int64 [P, n_keys]
        How many tokens selected each key.
    turns : int32 [P] or None
        The turn that each row is for, ascending; None: one row, for every turn.
    """

    counts: np.ndarray
    turns: np.ndarray | None = None

    def row_of(self, turn: np.ndarray) -> np.ndarray:
        """Return the row of `counts` for each of `turn`, int32 of its shape."""
        if self.turns is None:
            return np.zeros(turn.shape, np.int32)
        return np.searchsorted(self.turns, turn).astype(np.int32)
