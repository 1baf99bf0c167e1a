"""What the recorded times say, for the tables and the pictures of the report.

In: a trace. Out: its fit, and the data of pictures, of which each replay is made once.
"""

from collections.abc import Collection

import pandas as pd

from tracekit.analysis.curves import hit_rate_curves
from tracekit.analysis.times import POLICIES, time_by_read, with_recorded
from tracekit.routing.residency import sizes_are_known
from tracekit.timing import Fit, fit
from tracekit.trace import Trace, TracekitError


def fit_of(trace: Trace) -> Fit | None:
    """Return the fit to the times of a trace; None where there is nothing to fit or to predict."""
    if not sizes_are_known(trace):
        return None
    try:
        return fit(trace)
    except TracekitError:
        return None


def frames(
    trace: Trace,
    fitted: Fit | None,
    drawn: Collection[str],
    bypass: bool,
    seed: int,
    jobs: int | None,
) -> dict[str, pd.DataFrame]:
    """Return the data of the pictures of time among `drawn`, and of the curves that they go with."""
    if fitted is None:
        return {}
    found = {}
    if "time" in drawn:
        found["time"] = time_by_read(trace, fitted)
    if "time-curves" in drawn:
        curves = hit_rate_curves(trace, bypass=bypass, seed=seed, jobs=jobs, time=fitted)
        found["curves"] = curves
        of_time = curves[curves["policy"].isin(POLICIES)]
        found["time-curves"] = with_recorded(of_time, fitted, trace)
    return found
