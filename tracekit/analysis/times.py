"""Times of decoded tokens: by what each of them read, and by cache budget under several policies.

In: a trace with times. Out: frames that `tracekit.plots` draws.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracekit.analysis.curves import hit_rate_curves
from tracekit.figures import MIB
from tracekit.formats import as_trace
from tracekit.policies import Policy
from tracekit.timing import Fit, fit
from tracekit.timing.prediction import band
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE

POLICIES = ("belady", "follow", "lru")
_TYPICAL = ("typical_ms", "typical_slowest_ms", "at_least_ms")
_BAND = ("typical_ms", "low_ms", "high_ms", "p5_ms", "p95_ms")


def time_by_read(trace: Trace | str | Path, fitted: Fit | None = None) -> pd.DataFrame:
    """Say how long each decoded token took and what it read, and what the fit says of such tokens.

    Parameters
    ----------
    trace : Trace, str or Path
    fitted : Fit, optional
        Of the same trace, if it is there already.

    Returns
    -------
    DataFrame
        One row per decoded token: ``token`` (from 0, over all turns), ``turn``, ``step``,
        ``read_bytes``, ``wall_ms``. Of tokens that read as much: ``typical_ms``, the ends of its 95 %
        interval in another run, ``low_ms`` and ``high_ms``, and between which times nine of ten
        tokens lie, ``p5_ms`` and ``p95_ms``. On each row ``a_ms``, ``b_ms_per_mib``, ``usual_low_mib`` and
        ``usual_high_mib`` (between which 96 % of the tokens read), and ``refused``: why the fit says
        nothing, where these figures are missing.

    Raises
    ------
    MissingDataError
        The trace has no times, or decodes several tokens in a pass.
    UsageError
        There are too few tokens, or their bytes hardly vary.
    """
    trace = as_trace(trace)
    found = fit(trace) if fitted is None else fitted
    steps = trace.steps(["turn", "step", "phase"])
    decoded = (steps["phase"] == DECODE) & trace.kept
    frame = pd.DataFrame(
        {
            "token": np.arange(int(decoded.sum())),
            "turn": steps["turn"][decoded],
            "step": steps["step"][decoded],
            "read_bytes": np.rint(found.read_mib * MIB).astype(np.int64),
            "wall_ms": found.times.wall_ms,
        }
    )
    if found.refusal is not None:
        nothing = dict.fromkeys((*_BAND, "a_ms", "b_ms_per_mib"), np.nan)
        return frame.assign(**nothing, **_usual(found), refused=_refusal(found))
    figures = band(found, found.read_mib)
    return frame.assign(
        **{name: getattr(figures, name) for name in _BAND},
        a_ms=found.a_ms,
        b_ms_per_mib=found.b_ms_per_mib,
        **_usual(found),
        refused=None,
    )


def _refusal(fitted: Fit) -> str | None:
    """Return why a fit says nothing of any run; a picture has no room for the path of a trace."""
    sentence = fitted.refusal
    return sentence and sentence.replace(fitted.name, Path(fitted.name).name)


def _usual(fitted: Fit) -> dict[str, float]:
    low, high = fitted.usual_mib
    return {"usual_low_mib": low, "usual_high_mib": high}


def time_curves(
    trace: Trace | str | Path,
    policies: str | Policy | Sequence[str | Policy] = POLICIES,
    cache_bytes: int | Sequence[int] | None = None,
    *,
    params: Mapping[str, Any] | None = None,
    bypass: bool = False,
    seed: int = 0,
    jobs: int | None = None,
    fitted: Fit | None = None,
) -> pd.DataFrame:
    """Predict how long a decoded token takes under policies, over a range of budgets.

    Parameters
    ----------
    trace : Trace, str or Path
    policies, cache_bytes, params, bypass, seed, jobs
        As for `tracekit.analysis.hit_rate_curves`.
    fitted : Fit, optional
        From `tracekit.timing.fit`; of the trace's own times by default.

    Returns
    -------
    DataFrame
        The rows of `hit_rate_curves` with the columns about time of `tracekit.replay`, and on each
        row ``ceiling_tok_s`` (of a token that reads nothing), ``recorded_cache_bytes`` and
        ``recorded_tok_s`` (of the typical token of the recording), and ``refused``: why the fit says
        nothing of any run.

    Raises
    ------
    MissingDataError, UsageError
        As for `time_by_read`; or an unknown policy.
    TraceError
        A layer's expert size is missing.
    """
    trace = as_trace(trace)
    fitted = fit(trace) if fitted is None else fitted
    frame = hit_rate_curves(
        trace,
        policies,
        cache_bytes,
        params=params,
        bypass=bypass,
        seed=seed,
        jobs=jobs,
        time=fitted,
    )
    return with_recorded(frame, fitted, trace)


def with_recorded(frame: pd.DataFrame, fitted: Fit, trace: Trace) -> pd.DataFrame:
    """Return the rows of `time_curves` from those of `hit_rate_curves` with times."""
    found = frame.assign(
        ceiling_tok_s=np.nan if fitted.refusal else fitted.ceiling_tok_s,
        recorded_cache_bytes=trace.budget_bytes,
        recorded_tok_s=1000 / fitted.typical_ms if fitted.typical_ms > 0 else np.nan,
        refused=_refusal(fitted),
    )
    found.attrs["notes"] = [*frame.attrs["notes"], *([] if fitted.refusal else _without(frame))]
    return found


def _without(frame: pd.DataFrame) -> list[str]:
    """Say of which policies no time is given, and why."""
    found = []
    for policy, rows in frame.groupby("policy", sort=False):
        if rows[[*_TYPICAL]].isna().all(axis=None) and rows["time_refusals"].notna().any():
            found.append(f"Time of {policy}: {rows['time_refusals'].dropna().iloc[-1]}")
    return found
