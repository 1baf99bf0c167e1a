"""What the recorded times say, for the tables and the pictures of the report.

In: a trace. Out: its fit, and the data of pictures, of which each replay is made once.
"""

from collections.abc import Collection
from dataclasses import replace

import pandas as pd

from tracekit.analysis.curves import POLICIES as CURVES
from tracekit.analysis.curves import curves_replayed, hit_rate_curves
from tracekit.analysis.times import POLICIES, time_by_read, with_recorded
from tracekit.report.caching import Cache
from tracekit.report.long import IN_ONE_PASS, is_long
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
    cache: Cache,
    fitted: Fit | None,
    drawn: Collection[str],
    seed: int,
    jobs: int | None,
) -> dict[str, pd.DataFrame]:
    """Return the data of the pictures of time among `drawn`, and of the curves that they go with.

    `cache` is what was replayed already.
    """
    found: dict[str, pd.DataFrame] = {}
    if is_long(trace) and "curves" in drawn:
        found |= _long_curves(cache)
    if fitted is None:
        return found
    if "time" in drawn:
        found["time"] = time_by_read(trace, fitted)
    if "time-curves" in drawn:
        curves = found.get("curves")
        if curves is None:
            bypass = cache.bypass
            curves = hit_rate_curves(trace, bypass=bypass, seed=seed, jobs=jobs, time=fitted)
            found["curves"] = curves
        of_time = curves[curves["policy"].isin(POLICIES)]
        found["time-curves"] = with_recorded(of_time, fitted, trace)
    return found


def _long_curves(cache: Cache) -> dict[str, pd.DataFrame]:
    """Return the curves of a long trace, of what was replayed for the table."""
    result = cache.result
    if result is None or cache.sizes is None or not cache.sizes.in_bytes:
        return {}
    known = [row for row in result.rows if row.policy in CURVES]
    if not {cls.name for cls in IN_ONE_PASS} <= {row.policy for row in known}:
        return {}
    return {"curves": curves_replayed(replace(result, rows=known))}
