"""What a policy may be given beside the run: guesses of what comes, what comes, what was used elsewhere."""

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


@dataclass(frozen=True, eq=False)
class Later:
    """What is used after a piece of a run: what a policy that looks into the future has to know.

    Attributes
    ----------
    rank : int32 [n_keys]
        The keys that are used after the piece, by their first use there: 0, 1, 2, …; -1: never.
    counts, counts_decode : bool [n_keys]
        Whether that use is in one of ``Batches.counted``, of ``Batches.counted_decode``.
    """

    rank: np.ndarray
    counts: np.ndarray
    counts_decode: np.ndarray

    def of_keys(self, start: int, stop: int) -> "Later":
        """Return what is used later of the keys from `start` to `stop` − 1, counted from `start`."""
        rank = np.full(stop - start, -1, np.int32)
        used = np.flatnonzero(self.rank[start:stop] >= 0)
        order = used[np.argsort(self.rank[start + used])]
        rank[order] = np.arange(len(order))
        return Later(rank, self.counts[start:stop], self.counts_decode[start:stop])
