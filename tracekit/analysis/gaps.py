"""How many tokens pass between two uses of the same expert."""

import numpy as np

from tracekit.kernels import kernel


class TokenGaps:
    """The gaps between uses of the same expert, of decoded tokens that come block by block.

    Parameters
    ----------
    group : int [L]
        The group of each layer, from 0; the layers of a group are counted together.
    n_expert : int

    Attributes
    ----------
    n_tokens : int
        Tokens so far.
    """

    def __init__(self, group: np.ndarray, n_expert: int):
        self.n_tokens = 0
        self._group = group
        self._counts = np.zeros((int(group.max(initial=0)) + 1, 0), np.int64)
        self._first = np.full((len(group), n_expert), -1, np.int32)
        self._last = np.full((len(group), n_expert), -1, np.int32)

    @property
    def counts(self) -> np.ndarray:
        """Uses whose expert was last used g tokens before (g ≥ 1), int64 [groups, n_tokens] by g."""
        return self._counts[:, : self.n_tokens]

    def add(self, experts: np.ndarray) -> None:
        """Add the next tokens: `experts` [T, L, k]."""
        experts = np.ascontiguousarray(experts)
        n_groups, room = self._counts.shape
        after = self.n_tokens + len(experts)
        if after > room:
            further = np.zeros((n_groups, max(after, 2 * room) - room), np.int64)
            self._counts = np.concatenate([self._counts, further], axis=1)
        _add(experts, self.n_tokens, self._group, self._counts, self._first, self._last)
        self.n_tokens = after

    def idle_stretches(self) -> np.ndarray:
        """Count the stretches of n tokens in a row that do not use an expert.

        Returns
        -------
        int64 [groups, n_tokens + 1]
            By n, over the experts of the layers of each group.
        """
        n_groups, n_tokens = self.counts.shape
        idle = np.zeros((n_groups, n_tokens + 1), np.int64)
        idle[:, : n_tokens - 1] = self.counts[:, 1:]  # a gap of g leaves g − 1 tokens between
        group = np.broadcast_to(self._group[:, None], self._first.shape)
        used = self._last >= 0
        # Before the first use, which is the whole run if there is none, and after the last one.
        np.add.at(idle, (group, np.where(used, self._first, n_tokens)), 1)
        np.add.at(idle, (group[used], n_tokens - 1 - self._last[used]), 1)
        return idle


# One walk over the tokens that remembers for every (layer, expert) the token that used it last.
@kernel
def _add(
    experts: np.ndarray,
    n_before: int,
    group: np.ndarray,
    counts: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
) -> None:
    n_tokens, n_layers, k = experts.shape
    for t in range(n_tokens):
        token = n_before + t
        for layer in range(n_layers):
            for slot in range(k):
                expert = experts[t, layer, slot]
                before = last[layer, expert]
                if before < 0:
                    first[layer, expert] = token
                else:
                    counts[group[layer], token - before] += 1
                last[layer, expert] = token
