"""What a policy may answer: a user's own can be wrong, and its figures would be printed as facts."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tracekit.policies.base import Batches, Cell, Limit, Policy
from tracekit.trace.errors import UsageError


def simulate(
    policy: Policy, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
) -> list[Cell] | list[Limit]:
    """Return what `policy` answers; arguments are those of `Policy.simulate`.

    Raises
    ------
    UsageError
        It cannot be: another number of cells or batches, more hits than lookups, negative bytes.
    """
    cells = policy.simulate(batches, budgets, per_lookup)
    if type(policy).__module__.startswith("tracekit.policies."):
        return cells  # held to it by the tests
    fault = _fault(batches, budgets, cells)
    if fault:
        raise UsageError(f"Policy {policy.name!r} is wrong: its simulate() returned {fault}.")
    return cells


def _fault(batches: Batches, budgets: np.ndarray, cells: Any) -> str | None:
    if not isinstance(cells, Sequence) or len(cells) != len(budgets):
        return f"{_described(cells)} where a list of {len(budgets)} cells is due, one a budget"
    for budget, cell in zip(budgets.tolist(), cells, strict=True):
        if isinstance(cell, Limit):
            continue
        if not isinstance(cell, Cell):
            return f"{_described(cell)} where a Cell is due"
        if cell.budget_bytes != budget:
            return f"a cell of {cell.budget_bytes} bytes where one of {budget} is due"
        fault = _misshapen(batches, cell) or _impossible(batches, cell)
        if fault:
            return fault
    return None


def _misshapen(batches: Batches, cell: Cell) -> str | None:
    for name in ("hits", "resident_bytes", "lookups", "read_bytes", "prefetched", "hit"):
        values = getattr(cell, name)
        if values is None and name not in ("hits", "resident_bytes"):
            continue
        if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
            return f"{name} that are no array of numbers"
        n, of = (len(batches.keys), "lookups") if name == "hit" else (len(batches), "batches")
        if values.shape != (n,):
            return f"{name} of shape {values.shape} where one for each of {n} {of} is due"
    return None


def _impossible(batches: Batches, cell: Cell) -> str | None:
    lookups = batches.lookups if cell.lookups is None else cell.lookups
    for name, values, most in (
        ("lookups", lookups, batches.lookups),
        ("hits", cell.hits, lookups),
        ("bytes resident", cell.resident_bytes, None),
        ("bytes read", cell.read_bytes, None),
    ):
        if values is None:
            continue
        bad = ~(values >= 0) if most is None else ~((values >= 0) & (values <= most))  # or NaN
        if bad.any():
            b = int(bad.argmax())
            of = "" if most is None else f" of {most[b]} lookups"
            return f"{values[b]} {name}{of} for batch {b}"
    return None


def _described(value: Any) -> str:
    return f"{len(value)} cells" if isinstance(value, Sequence) else f"{value!r}"
