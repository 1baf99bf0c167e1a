"""Belady's rule: evict the entry whose next use is furthest away."""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.positions import add, discard, empty_set, holds, largest


@register
class Belady(Policy):
    """Evict the entry whose next use is furthest away (L. A. Belady, 1966).

    Entries that are never used again go first, the one admitted first before the others. At equal
    sizes no schedule has more hits that keeps what a load has used until it ends; with unequal sizes
    the rule is a heuristic, see `bound`. With ``--bypass`` what was just used is dropped at once if
    its own next use is the furthest; at equal sizes no schedule that may do so has more hits.
    """

    name = "belady"
    summary = (
        "evicts what is used again furthest in the future (the optimum if all sizes are equal)"
    )
    offline = True
    can_bypass = True

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        return cells_of_kernel(
            batches,
            budgets,
            per_lookup,
            _belady,
            batches.keys,
            batches.admit_rank,
            batches.batch_start,
            batches.layer,
            batches.next_use,
            batches.layer_of_lookup,
            batches.expert_bytes,
            batches.n_expert,
            state=lambda: (
                *empty_set(len(batches.keys)),
                np.zeros(batches.n_keys, np.int64),
                np.empty(batches.n_keys, np.int32),
            ),
        )


# The resident entries are a set of numbers: the positions in the trace of their next uses. A lookup
# hits if its own position is in the set. The victim is the largest number of the set. After the
# eviction, or before it with `bypass`, the next uses of the batch's entries join the set. Positions
# that have passed can stay in it, because they are smaller than all that are still to come. The
# residents without a next use are the first of `finished`; `admitted` says when each resident was.
@kernel
def _belady(
    keys: np.ndarray,
    admit_rank: np.ndarray,
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    next_use: np.ndarray,
    layer_of_lookup: np.ndarray,
    expert_bytes: np.ndarray,
    n_expert: int,
    bits: np.ndarray,
    words: np.ndarray,
    groups: np.ndarray,
    admitted: np.ndarray,
    finished: np.ndarray,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    n_positions = keys.size
    top = np.int64(0)  # no group after this one holds anything
    waiting = np.int64(0)  # entries in the set whose position has not passed
    n_finished = np.int64(0)
    used = np.int64(0)
    for b in range(batch_start.size - 1):
        start = batch_start[b]
        stop = batch_start[b + 1]
        n_hits = np.int64(0)
        for p in range(start, stop):
            is_hit = holds(bits, p)
            n_hits += np.int64(is_hit)
            if not is_hit:
                admitted[keys[p]] = start + admit_rank[p]
            if hit.size:
                hit[p] = is_hit
        waiting -= n_hits
        used += (stop - start - n_hits) * expert_bytes[batch_layer[b]]

        for late in range(2):
            if (late == 0) == bypass:
                for p in range(start, stop):
                    following = np.int64(next_use[p])
                    if following == n_positions:
                        finished[n_finished] = keys[p]
                        n_finished += 1
                        continue
                    waiting += 1
                    add(bits, words, groups, following)
                    top = max(top, following >> 18)
                continue
            while used > budget and n_finished > 0:
                oldest = 0
                for i in range(1, n_finished):
                    if admitted[finished[i]] < admitted[finished[oldest]]:
                        oldest = i
                used -= expert_bytes[finished[oldest] // n_expert]
                n_finished -= 1
                finished[oldest] = finished[n_finished]
            while used > budget and waiting > 0:
                while groups[top] == 0:
                    top -= 1
                last = largest(bits, words, groups, top)
                used -= expert_bytes[layer_of_lookup[last]]
                waiting -= 1
                discard(bits, words, groups, last)
        hits[b] = n_hits
        resident[b] = used
