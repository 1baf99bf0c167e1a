"""How often each expert was selected for each token id, fold by fold."""

from collections.abc import Collection

import numpy as np

# Vocabularies are smaller. A larger id may stand in a damaged trace: no array is as long as that.
DENSE_IDS = 1 << 22


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
        # A token id of a fold has a row in the fold's table and one in the table of all folds.
        self._most_rows = max(1, limit_bytes // (4 * n_layers * n_expert))
        self._all = _Table(n_layers, n_expert)
        self._folds = [_Table(n_layers, n_expert) for _ in range(n_folds)]
        self.ignored = 0

    @property
    def n_ids(self) -> int:
        """How many different token ids were learned."""
        return self._all.n_rows

    @property
    def notes(self) -> tuple[str, ...]:
        """How many ids were learned, and how many tokens had to be left out."""
        learned = f"{self.n_ids} token ids learned"
        if not self.ignored:
            return (learned,)
        return learned, f"{self.ignored} tokens not learned, for their ids found no memory"

    def add(self, token: np.ndarray, experts: np.ndarray, fold: int) -> None:
        """Count the selections `experts` [T, L, k] of the tokens `token` [T] for `fold`."""
        own = self._folds[fold]
        for t in np.unique(token[token >= 0]).tolist():
            new = (own.row(t) < 0) + (self._all.row(t) < 0)
            if self._all.n_rows + sum(f.n_rows for f in self._folds) + new <= self._most_rows:
                own.make_row(t)
                self._all.make_row(t)
        known = own.rows(token) >= 0
        self.ignored += int(np.count_nonzero(~known))
        for table in (own, self._all):
            table.add(token[known], experts[known])

    def frequency(self, token: np.ndarray, layer: int, without: Collection[int]) -> np.ndarray:
        """Return how often each expert is selected for each token, float64 [T, n_expert].

        One pseudo-observation of the layer's overall popularity is mixed in, so that a token never
        seen gets just that.

        Parameters
        ----------
        token : int32 [T]
        layer : int
        without : collection of int
            Folds to leave out.
        """
        counts, seen = self._all.look_up(token, layer)
        popularity, tokens = self._all.popularity[layer].copy(), self._all.tokens
        for fold in without:
            table = self._folds[fold]
            fewer_counts, fewer_seen = table.look_up(token, layer)
            counts -= fewer_counts
            seen -= fewer_seen
            popularity -= table.popularity[layer]
            tokens -= table.tokens
        mixed = counts + (popularity / max(tokens, 1)).astype(np.float32)
        frequency: np.ndarray = mixed / (seen + 1).astype(np.float32)[:, None]
        return frequency


class _Table:
    """Counts by token id; an id gets a row when it is first seen."""

    def __init__(self, n_layers: int, n_expert: int):
        self.n_rows = 0
        self.tokens = 0
        self.popularity = np.zeros((n_layers, n_expert), np.int64)
        self._row_of_id = np.zeros(0, np.int32)  # of ids below `DENSE_IDS`
        self._row_of_large_id: dict[int, int] = {}
        self._counts = np.zeros((0, n_layers, n_expert), np.int32)
        self._seen = np.zeros(0, np.int32)

    def row(self, token: int) -> int:
        """Return the row of a token id, −1 if it has none."""
        if token >= DENSE_IDS:
            return self._row_of_large_id.get(token, -1)
        return int(self._row_of_id[token]) if token < len(self._row_of_id) else -1

    def rows(self, token: np.ndarray) -> np.ndarray:
        """Return the row of each token, −1 where it has none."""
        inside = (token >= 0) & (token < len(self._row_of_id))
        rows = np.full(len(token), -1, np.int32)
        rows[inside] = self._row_of_id[token[inside]]
        if self._row_of_large_id:
            for t in np.flatnonzero(token >= DENSE_IDS).tolist():
                rows[t] = self.row(int(token[t]))
        return rows

    def make_row(self, token: int) -> None:
        """Make room for a token id, unless it has a row."""
        if self.row(token) >= 0:
            return
        if len(self._row_of_id) <= token < DENSE_IDS:
            self._row_of_id = _grown(self._row_of_id, token + 1, fill=-1)
        if self.n_rows == len(self._seen):
            self._counts = _grown(self._counts, self.n_rows + 1)
            self._seen = _grown(self._seen, self.n_rows + 1)
        if token < DENSE_IDS:
            self._row_of_id[token] = self.n_rows
        else:
            self._row_of_large_id[token] = self.n_rows
        self.n_rows += 1

    def add(self, token: np.ndarray, experts: np.ndarray) -> None:
        """Count selections [T, L, k] of tokens that have rows."""
        rows = self.rows(token)
        layers = np.arange(len(self.popularity))[:, None]
        chosen = experts.astype(np.intp)
        np.add.at(self._seen, rows, 1)
        np.add.at(self._counts, (rows[:, None, None], layers, chosen), 1)
        np.add.at(self.popularity, (layers, chosen), 1)
        self.tokens += len(token)

    def look_up(self, token: np.ndarray, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the counts [T, n_expert] of each token at a layer, and how often it was seen."""
        rows = self.rows(token)
        counts = np.zeros((len(token), self.popularity.shape[1]), np.int32)
        seen = np.zeros(len(token), np.int32)
        known = rows >= 0
        counts[known] = self._counts[rows[known], layer]
        seen[known] = self._seen[rows[known]]
        return counts, seen


def _grown(array: np.ndarray, least: int, fill: int = 0) -> np.ndarray:
    """Return `array` with room for at least `least` rows, and at least twice as many as before."""
    bigger = np.full((max(least, 2 * len(array)), *array.shape[1:]), fill, array.dtype)
    bigger[: len(array)] = array
    return bigger
