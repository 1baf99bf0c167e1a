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
        self._slots: list[dict[int, int]] = [{} for _ in range(n_folds)]
        self._counts = [np.zeros((0, *self._shape), np.int32) for _ in range(n_folds)]
        self._seen = [np.zeros(0, np.int32) for _ in range(n_folds)]
        self._popularity = np.zeros((n_folds, *self._shape), np.int64)
        self._tokens = np.zeros(n_folds, np.int64)
        self._free_slots = limit_bytes // (4 * n_layers * n_expert)
        self.ignored = 0

    @property
    def n_ids(self) -> int:
        """How many different token ids were learned."""
        return len(set().union(*self._slots))

    @property
    def notes(self) -> tuple[str, ...]:
        """How many ids were learned, and how many tokens had to be left out."""
        learned = f"{self.n_ids} token ids learned"
        if not self.ignored:
            return (learned,)
        return learned, f"{self.ignored} tokens not learned, for their ids found no memory"

    def add(self, token: np.ndarray, experts: np.ndarray, fold: int) -> None:
        """Count the selections `experts` [T, L, k] of the tokens `token` [T] for `fold`."""
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
        folds = [f for f in range(len(self._slots)) if f not in without]
        total = max(int(self._tokens[folds].sum()), 1)
        counts = np.tile((self._popularity[folds, layer].sum(axis=0) / total), (len(token), 1))
        seen = np.ones(len(token))
        for fold in folds:
            slots = self._slots[fold]
            rows = np.array([slots.get(t, -1) for t in token.tolist()], np.intp)
            known = rows >= 0
            counts[known] += self._counts[fold][rows[known], layer]
            seen[known] += self._seen[fold][rows[known]]
        return (counts / seen[:, None]).astype(np.float32)

    def _rows(self, fold: int, token: np.ndarray) -> np.ndarray:
        slots = self._slots[fold]
        for t in np.unique(token).tolist():
            if t not in slots and self._free_slots:
                slots[t] = len(slots)
                self._free_slots -= 1
        if len(slots) > len(self._seen[fold]):
            room = max(2 * len(self._seen[fold]), len(slots))
            self._counts[fold] = _grown(self._counts[fold], room)
            self._seen[fold] = _grown(self._seen[fold], room)
        return np.array([slots.get(t, -1) for t in token.tolist()], np.intp)


def _grown(array: np.ndarray, length: int) -> np.ndarray:
    bigger = np.zeros((length, *array.shape[1:]), array.dtype)
    bigger[: len(array)] = array
    return bigger
