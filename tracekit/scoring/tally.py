"""Counts of a predictor's hits, by MoE layer and by unit of the bootstrap."""

import numpy as np

from tracekit.scoring.ranks import rank


class Tally:
    """Counts of one predictor at one horizon, by MoE layer.

    Parameters
    ----------
    n_layers, top_k : int
    named : sequence of int
        Numbers of experts named, ascending, k among them.
    n_units : int

    Attributes
    ----------
    routings, unscored, exact, near_ties : int64 [L]
        Routings scored and not; those whose k experts were all among the first k named; those with
        a miss where the k-th and the next score are all but equal.
    hits : int64 [M, L]
        Selected experts among the first `named[m]`.
    mass : float64 [M, L]
        Sum over the routings with known weights of the share of weight those experts carry.
    weighed : int64 [L]
        Routings with known weights.
    unit_hits, unit_routings : int32 [U, L]
        Hits among the first k and routings scored, by unit of the bootstrap.
    """

    def __init__(self, n_layers: int, top_k: int, named: tuple[int, ...], n_units: int):
        self.top_k = top_k
        self.named = named
        self.routings = np.zeros(n_layers, np.int64)
        self.unscored = np.zeros(n_layers, np.int64)
        self.exact = np.zeros(n_layers, np.int64)
        self.near_ties = np.zeros(n_layers, np.int64)
        self.hits = np.zeros((len(named), n_layers), np.int64)
        self.mass = np.zeros((len(named), n_layers))
        self.weighed = np.zeros(n_layers, np.int64)
        self.unit_hits = np.zeros((n_units, n_layers), np.int32)
        self.unit_routings = np.zeros((n_units, n_layers), np.int32)

    def skip(self, layer: int, n_tokens: int) -> None:
        """Count routings that the predictor could not rank."""
        self.unscored[layer] += n_tokens

    def add(
        self,
        layer: int,
        scores: np.ndarray,
        selected: np.ndarray,
        weights: np.ndarray | None,
        units: np.ndarray,
    ) -> None:
        """Score T routings of a layer.

        Parameters
        ----------
        layer : int
        scores : float32 [T, n_expert]
            What is ranked: higher first, −inf cannot be named.
        selected : uint16 [T, k]
        weights : float32 [T, k] or None
            Of the selected experts; NaN where unknown.
        units : int64 [T]
            The unit of each token, ascending.
        """
        ranks, near_tie = rank(np.ascontiguousarray(scores, np.float32), selected)
        named_first = ranks < self.top_k
        hits = named_first.sum(axis=1)
        self.routings[layer] += len(hits)
        self.exact[layer] += np.count_nonzero(hits == self.top_k)
        self.near_ties[layer] += np.count_nonzero(near_tie)
        share = None
        if weights is not None:
            total = weights.sum(axis=1, keepdims=True, dtype=np.float64)
            known = total[:, 0] > 0  # false for NaN too
            # In float32 their sums are exact, in whatever blocks the tokens come.
            share = (weights[known] / total[known]).astype(np.float32)
            self.weighed[layer] += np.count_nonzero(known)
        for m, n_named in enumerate(self.named):
            found = ranks < n_named
            self.hits[m, layer] += np.count_nonzero(found)
            if share is not None:
                self.mass[m, layer] += share[found[known]].sum(dtype=np.float64)
        first = units[0]
        of_unit = units - first
        n = int(of_unit[-1]) + 1
        self.unit_hits[first : first + n, layer] += np.bincount(of_unit, hits, n).astype(np.int32)
        self.unit_routings[first : first + n, layer] += np.bincount(of_unit, minlength=n).astype(
            np.int32
        )
