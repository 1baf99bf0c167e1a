"""A cell for each budget, in new arrays that a policy fills.

In go batches, budgets and a function that replays one budget; out come cells. Nothing here knows a
policy.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tracekit.policies.base import Batches, Cell


def cells_of(
    batches: Batches,
    budgets: np.ndarray,
    per_lookup: bool,
    run: Callable[[Cell, np.ndarray], Cell],
) -> list[Cell]:
    """Return a cell for each of `budgets`, in their order.

    Parameters
    ----------
    batches : Batches
    budgets : int64 [C]
    per_lookup : bool
        Fill ``Cell.hit`` too.
    run : callable
        Called once for each budget with a cell whose `hits` and `resident_bytes` are still to be
        filled, and with an array to fill with whether each lookup hit: bool [N], or [0] without
        `per_lookup`. It returns the cell, with counters if the policy has some.
    """
    cells = []
    for budget in budgets.tolist():
        hits = np.empty(len(batches), np.int32)
        resident_bytes = np.empty(len(batches), np.int64)
        hit = np.empty(len(batches.keys) if per_lookup else 0, np.bool_)
        blank = Cell(budget, hits, resident_bytes, hit=hit if per_lookup else None)
        cells.append(run(blank, hit))
    return cells


def cells_of_kernel(
    batches: Batches,
    budgets: np.ndarray,
    per_lookup: bool,
    kernel: Callable[..., None],
    *inputs: Any,
    state: Callable[[], Iterable[np.ndarray]] = tuple,
) -> list[Cell]:
    """Return a cell for each of `budgets`, in their order, filled by a kernel without counters.

    Parameters
    ----------
    batches, budgets, per_lookup
        As for `cells_of`.
    kernel : callable
        Called as ``kernel(*inputs, *state(), budget, bypass, hits, resident, hit)``: a budget in
        bytes, ``batches.bypass``, and the three arrays to fill.
    *inputs
        What the kernel reads, the same for every budget.
    state : callable, optional
        Returns new arrays that the kernel works with, as they are before the first batch. A kernel
        may make them itself, which takes numba longer to compile.
    """

    def run(cell: Cell, hit: np.ndarray) -> Cell:
        kernel(
            *inputs,
            *state(),
            cell.budget_bytes,
            batches.bypass,
            cell.hits,
            cell.resident_bytes,
            hit,
        )
        return cell

    return cells_of(batches, budgets, per_lookup, run)
