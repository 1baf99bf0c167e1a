"""Checks of what passes cost, as far as one figure bounds another.

In: columns of steps. Out: nothing, or a `TraceError`. What a figure may be alone, `checks` says.
"""

import numpy as np

from tracekit.trace.checks import Arrays, Where, first_true
from tracekit.trace.errors import TraceError


def check_costs(where: Where, steps: Arrays, after_s: float = 0.0) -> float:
    """Check that each pass begins after the one before it, and evicts no longer than it takes.

    Parameters
    ----------
    where : Where
    steps : mapping
        Columns of steps, among them `start_s`, `wall_ms` and `evict_ms` where they are recorded.
    after_s : float
        When the last pass before these began.

    Returns
    -------
    float
        When the last of these began; `after_s` if none says so.

    Raises
    ------
    TraceError
    """
    if "start_s" in steps:
        rows = np.flatnonzero(~np.isnan(steps["start_s"]))
        starts = np.concatenate(([after_s], steps["start_s"][rows]))
        at = first_true(np.diff(starts) < 0)
        if at is not None:
            raise TraceError(
                f"{where.at(rows[at])}, column start_s: {starts[at + 1]:.6g} follows "
                f"{starts[at]:.6g}, but a pass begins after the one before it; correct or record it "
                "again."
            )
        after_s = float(starts[-1])
    if "evict_ms" in steps and "wall_ms" in steps:
        row = first_true(steps["evict_ms"] > steps["wall_ms"])  # NaN, which is null, is not more
        if row is not None:
            raise TraceError(
                f"{where.at(row)}, column evict_ms: {steps['evict_ms'][row]:.6g} is more than the "
                f"{steps['wall_ms'][row]:.6g} of the whole pass (wall_ms); correct or record it again."
            )
    return after_s
