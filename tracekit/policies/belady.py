"""Belady's rule: evict the entry whose next use is furthest away."""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Totals, register
from tracekit.policies.cells import cells_of
from tracekit.policies.chain import kept_at
from tracekit.policies.fed import FedPolicy, Run
from tracekit.policies.intervals import waiting_keys
from tracekit.policies.model import Model
from tracekit.policies.positions import add, count, discard, holds, largest, set_of
from tracekit.policies.totals import totals_of_equal_sizes


@register
class Belady(FedPolicy):
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

    def start(self, model: Model, budgets: np.ndarray) -> "BeladyRun":
        return BeladyRun(model, budgets)

    def gives_totals(self, batches: Batches, n_budgets: int) -> bool:
        return batches.has_equal_sizes and n_budgets > 0  # the bound takes the same pass

    def totals(self, batches: Batches, budgets: np.ndarray) -> list[Totals]:
        kept = kept_at(batches, batches.next_use, budgets)
        return totals_of_equal_sizes(batches, budgets, kept)


class BeladyRun(Run):
    """One budget after the other over each piece.

    A piece knows for each key where it is used next, also if that is after the piece (`Later`).
    Between pieces it is known of each key whether it is resident and used again (`waits`).
    """

    def __init__(self, model: Model, budgets: np.ndarray):
        self._budgets = budgets
        self._n_lookups = 0  # of the pieces before
        self._states = [_State.empty(model.n_keys) for _ in budgets]

    def feed(self, batches: Batches, per_lookup: bool = False) -> list[Cell]:
        states = iter(self._states)

        def run(cell: Cell, hit: np.ndarray) -> Cell:
            state = next(states)
            resident = set_of(batches.first_use[state.waits], batches.n_positions)
            _belady(
                batches.keys,
                batches.admit_rank,
                batches.batch_start,
                batches.layer,
                batches.next_use,
                batches.layer_of_position,
                batches.expert_bytes,
                batches.n_expert,
                self._n_lookups,
                *resident,
                state.admitted,
                state.finished,
                state.totals,
                cell.budget_bytes,
                batches.bypass,
                cell.hits,
                cell.resident_bytes,
                hit,
            )
            state.waits = waiting_keys(batches, resident[0])
            return cell

        cells = cells_of(batches, self._budgets, per_lookup, run)
        self._n_lookups += len(batches.keys)
        return cells


@dataclass
class _State:
    """What one budget holds between two pieces.

    Attributes
    ----------
    waits : int [W]
        The resident keys that are used again.
    admitted : int64 [n_keys]
        When each was admitted, counted in lookups of the whole run.
    finished : int32 [n_keys]
        The first of them are resident and never used again.
    totals : int64 [3]
        How many wait, how many are finished, and the resident bytes.
    """

    waits: np.ndarray
    admitted: np.ndarray
    finished: np.ndarray
    totals: np.ndarray

    @classmethod
    def empty(cls, n_keys: int) -> "_State":
        return cls(
            np.empty(0, np.int64),
            np.zeros(n_keys, np.int64),
            np.empty(n_keys, np.int32),
            np.zeros(3, np.int64),
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
    layer_of_position: np.ndarray,
    expert_bytes: np.ndarray,
    n_expert: int,
    n_before: int,
    bits: np.ndarray,
    words: np.ndarray,
    groups: np.ndarray,
    admitted: np.ndarray,
    finished: np.ndarray,
    totals: np.ndarray,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    n_positions = layer_of_position.size
    top = np.int64(groups.size - 1)  # no group after this one holds anything
    waiting, n_finished, used = (
        totals  # `waiting`: entries in the set whose position has not passed
    )
    for b in range(batch_start.size - 1):
        start = batch_start[b]
        stop = batch_start[b + 1]
        n_hits = count(bits, start, stop)
        if n_hits < stop - start or hit.size:
            for p in range(start, stop):
                is_hit = holds(bits, p)
                if not is_hit:
                    admitted[keys[p]] = n_before + start + admit_rank[p]
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
                used -= expert_bytes[layer_of_position[last]]
                waiting -= 1
                discard(bits, words, groups, last)
        hits[b] = n_hits
        resident[b] = used
    totals[0], totals[1], totals[2] = waiting, n_finished, used
