"""How often each expert was selected for each token id, fold by fold."""

from collections.abc import Collection

import numpy as np


class TokenCounts:
    """Counts of selections by (token id, layer, expert), from which folds can be left out.

    Parameters
    ----------
    n_folds, n_layers, n_expert : int
    limit_bytes : int
        Ids that appear once this much memory is in use are not learned; `ignored` counts their
        tokens.
    """

    def __init__(self, n_folds: int, n_layers: int, n_expert: int, limit_bytes: int = 384 << 20):
        self._shape = (n_layers, n_expert)
        # The row of each token id in the counts of a fold; −1: none.
        self._row_of_id = [np.zeros(0, np.int32) for _ in range(n_folds)]
        self._n_rows = [0] * n_folds
        self._counts = [np.zeros((0, *self._shape), np.int32) for _ in range(n_folds)]
        self._seen = [np.zeros(0, np.int32) for _ in range(n_folds)]
        self._popularity = np.zeros((n_folds, *self._shape), np.int64)
        self._tokens = np.zeros(n_folds, np.int64)
        self._free_rows = limit_bytes // (4 * n_layers * n_expert)
        self.ignored = 0

    @property
    def n_ids(self) -> int:
        """How many different token ids were learned."""
        return len(
            np.unique(np.concatenate([np.flatnonzero(rows >= 0) for rows in self._row_of_id]))
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """How many ids were learned, and how many tokens had to be left out."""
        learned = f"{self.n_ids} token ids learned"
        if not self.ignored:
            return (learned,)
        return learned, f"{self.ignored} tokens not learned, for their ids found no memory"

    def add(self, token: np.ndarray, experts: np.ndarray, fold: int) -> None:
        """Count the selections `experts` [T, L, k] of the tokens `token` [T] for `fold`."""
        self._make_rows(fold, token)
        rows = self._rows(fold, token)
        counts = self._counts[fold]
        known = rows >= 0
        self.ignored += int((~known).sum())
        layers = np.arange(self._shape[0])[:, None]
        np.add.at(self._seen[fold], rows[known], 1)
        np.add.at(counts, (rows[known][:, None, None], layers, experts[known].astype(np.intp)), 1)
        np.add.at(self._popularity[fold], (layers, experts.astype(np.intp)), 1)
        self._tokens[fold] += len(token)

    def frequency(self, token: np.ndarray, layer: int, without: Collection[int]) -> np.ndarray:
        """Return how often each expert is selected for each token, float32 [T, n_expert].

        One pseudo-observation of the layer's overall popularity is mixed in, so that a token never
        seen gets just that.

        Parameters
        ----------
        token : int32 [T]
        layer : int
        without : collection of int
            Folds to leave out.
        """
        folds = [f for f in range(len(self._n_rows)) if f not in without]
        total = max(int(self._tokens[folds].sum()), 1)
        counts = np.tile((self._popularity[folds, layer].sum(axis=0) / total), (len(token), 1))
        seen = np.ones(len(token))
        for fold in folds:
            rows = self._rows(fold, token)
            known = rows >= 0
            counts[known] += self._counts[fold][rows[known], layer]
            seen[known] += self._seen[fold][rows[known]]
        return (counts / seen[:, None]).astype(np.float32)

    def _rows(self, fold: int, token: np.ndarray) -> np.ndarray:
        """Return the row of each token in the counts of `fold`, −1 where it has none."""
        row_of_id = self._row_of_id[fold]
        inside = (token >= 0) & (token < len(row_of_id))
        rows = np.full(len(token), -1, np.int32)
        rows[inside] = row_of_id[token[inside]]
        return rows

    def _make_rows(self, fold: int, token: np.ndarray) -> None:
        ids = np.unique(token[token >= 0])
        if len(ids) and ids[-1] >= len(self._row_of_id[fold]):
            room = max(2 * len(self._row_of_id[fold]), int(ids[-1]) + 1)
            self._row_of_id[fold] = _grown(self._row_of_id[fold], room, fill=-1)
        new = ids[self._row_of_id[fold][ids] < 0][: self._free_rows]
        first = self._n_rows[fold]
        self._row_of_id[fold][new] = np.arange(first, first + len(new))
        self._n_rows[fold] += len(new)
        self._free_rows -= len(new)
        if self._n_rows[fold] > len(self._seen[fold]):
            room = max(2 * len(self._seen[fold]), self._n_rows[fold])
            self._counts[fold] = _grown(self._counts[fold], room)
            self._seen[fold] = _grown(self._seen[fold], room)


def _grown(array: np.ndarray, length: int, fill: int = 0) -> np.ndarray:
    bigger = np.full((length, *array.shape[1:]), fill, array.dtype)
    bigger[: len(array)] = array
    return bigger
