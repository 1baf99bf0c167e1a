"""How many tokens pass between two uses of the same expert."""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel


@dataclass(frozen=True)
class TokenGaps:
    """The gaps between uses of the same expert, over T decoded tokens, by layer.

    Attributes
    ----------
    counts : int64 [L, T]
        ``counts[l, g]``: uses at layer l whose expert was last used g tokens before (g ≥ 1).
    first, last : int32 [L, n_expert]
        The first and last token that used an expert; T and -1 for one never used.
    """

    counts: np.ndarray
    first: np.ndarray
    last: np.ndarray

    def idle_stretches(self) -> np.ndarray:
        """Count stretches of n tokens in a row that do not use an expert, int64 [L, T + 1] by n."""
        n_layers, n_tokens = self.counts.shape
        idle = np.zeros((n_layers, n_tokens + 1), np.int64)
        idle[:, : n_tokens - 1] = self.counts[:, 1:]  # a gap of g leaves g − 1 tokens between
        row = np.arange(n_layers)[:, None]
        np.add.at(idle, (row, self.first), 1)  # before the first use; the whole run if never used
        used = self.last >= 0
        after = n_tokens - 1 - self.last
        np.add.at(idle, (np.nonzero(used)[0], after[used]), 1)
        return idle


def token_gaps(experts: np.ndarray, n_expert: int) -> TokenGaps:
    """Measure the gaps of the `experts` of a `DecodeGrid`, [T, L, k]."""
    return TokenGaps(*_token_gaps(np.ascontiguousarray(experts), n_expert))


# One walk over the tokens that remembers for every (layer, expert) the token that used it last.
@kernel
def _token_gaps(experts: np.ndarray, n_expert: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n_tokens, n_layers, k = experts.shape
    counts = np.zeros((n_layers, n_tokens), np.int64)
    first = np.full((n_layers, n_expert), n_tokens, np.int32)
    last = np.full((n_layers, n_expert), -1, np.int32)
    for t in range(n_tokens):
        for layer in range(n_layers):
            for slot in range(k):
                expert = experts[t, layer, slot]
                before = last[layer, expert]
                if before < 0:
                    first[layer, expert] = t
                else:
                    counts[layer, t - before] += 1
                last[layer, expert] = t
    return counts, first, last
