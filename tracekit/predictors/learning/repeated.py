"""Scores and weights of a guess that repeats a selection made elsewhere."""

import numpy as np


def scores_in_order(experts: np.ndarray, n_expert: int) -> np.ndarray:
    """Score the selections `experts` [T, k] in slot order, float32 [T, n_expert]; −inf: the rest."""
    k = experts.shape[1]
    scores = np.full((len(experts), n_expert), -np.inf, np.float32)
    order = np.broadcast_to(np.arange(k, 0, -1, dtype=np.float32), experts.shape)
    np.put_along_axis(scores, experts.astype(np.intp), order, axis=1)
    return scores


def weights_of(
    experts: np.ndarray, weights: np.ndarray, named: np.ndarray, n_expert: int
) -> np.ndarray:
    """Return what the experts `named` [T, k] weighed in the selections, float32 [T, k].

    Parameters
    ----------
    experts : int [T, k]
    weights : float32 [T, k]
        Of `experts`.
    named : int [T, k]
        Some or all of `experts`, in any order.
    n_expert : int

    Returns
    -------
    float32 [T, k]
        Each row sums to 1; NaN where a weight is unknown.
    """
    dense = np.full((len(experts), n_expert), np.nan, np.float32)
    np.put_along_axis(dense, experts.astype(np.intp), weights, axis=1)
    found = np.take_along_axis(dense, named, axis=1)
    total = found.sum(axis=1, keepdims=True)
    shares: np.ndarray = np.divide(found, total, out=np.full_like(found, np.nan), where=total > 0)
    return shares
