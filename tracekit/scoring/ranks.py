"""Where a predictor ranked the experts that the model selected: the kernels of the scorer."""

import numpy as np

from tracekit.kernels import kernel

NEAR_TIE = 1e-5


# All figures of the scorer follow from one number per selected expert: its rank in the predicted
# order. The rank is the count of experts with a higher score, or with an equal score and a lower id.
# So no row is sorted, and the two counting loops are branchless and vectorise. Only in a row with a
# miss are the k-th and the next score needed; they are found by insertion into a short list.
@kernel
def _rank_selected(
    scores: np.ndarray,
    selected: np.ndarray,
    ranks: np.ndarray,
    near_tie: np.ndarray,
    tolerance: np.float32,
) -> None:
    n_tokens, n_expert = scores.shape
    k = selected.shape[1]
    best = np.empty(k + 1, np.float32)
    for t in range(n_tokens):
        missed = False
        for slot in range(k):
            expert = np.int64(selected[t, slot])
            score = scores[t, expert]
            if score == -np.inf:
                ranks[t, slot] = n_expert
                missed = True
                continue
            above = np.int32(0)
            for e in range(expert):
                above += np.int32(scores[t, e] >= score)
            for e in range(expert + 1, n_expert):
                above += np.int32(scores[t, e] > score)
            ranks[t, slot] = above
            missed |= above >= k
        near_tie[t] = False
        if not missed:
            continue
        filled = 0
        for e in range(n_expert):
            score = scores[t, e]
            if filled == k + 1 and score <= best[k]:
                continue
            at = filled if filled < k + 1 else k
            filled = min(filled + 1, k + 1)
            while at > 0 and best[at - 1] < score:
                best[at] = best[at - 1]
                at -= 1
            best[at] = score
        if filled == k + 1 and best[k] > -np.inf:
            near_tie[t] = best[k - 1] - best[k] < tolerance


def rank(scores: np.ndarray, selected: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank the selected experts of T routings by predicted scores, ties to the lower expert id.

    Parameters
    ----------
    scores : float32 [T, n_expert]
        Higher is better; −inf: the predictor cannot name this expert.
    selected : uint16 [T, k]
        What the model selected.

    Returns
    -------
    ranks : int32 [T, k]
        From 0; `n_expert` for an expert that the predictor cannot name.
    near_tie : bool [T]
        True where a selected expert is not among the first k, and the k-th and the next score
        differ by less than ``NEAR_TIE``.
    """
    ranks = np.empty(selected.shape, np.int32)
    near_tie = np.empty(len(selected), np.bool_)
    selected = np.ascontiguousarray(selected)
    _rank_selected(scores, selected, ranks, near_tie, np.float32(NEAR_TIE))
    return ranks, near_tie


# The best k of a row by insertion into a short sorted list; a later expert of an equal score has a
# higher id and does not displace an earlier one.
@kernel
def _name_best(scores: np.ndarray, named: np.ndarray) -> None:
    n_tokens, n_expert = scores.shape
    k = named.shape[1]
    best = np.empty(k, np.float32)
    for t in range(n_tokens):
        filled = 0
        for e in range(n_expert):
            score = scores[t, e]
            if score == -np.inf or (filled == k and score <= best[k - 1]):
                continue
            at = filled if filled < k else k - 1
            filled = min(filled + 1, k)
            while at > 0 and best[at - 1] < score:
                best[at] = best[at - 1]
                named[t, at] = named[t, at - 1]
                at -= 1
            best[at] = score
            named[t, at] = e
        named[t, filled:] = -1


def name_best(scores: np.ndarray, k: int) -> np.ndarray:
    """Name the k best experts of each row, best first, ties to the lower id.

    Parameters
    ----------
    scores : float32 [T, n_expert]
        −inf: cannot be named.
    k : int

    Returns
    -------
    int32 [T, k]
        −1 where fewer than k can be named.
    """
    named = np.empty((len(scores), k), np.int32)
    _name_best(np.ascontiguousarray(scores, np.float32), named)
    return named
