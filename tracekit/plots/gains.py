"""What a policy gains over another: points of hit rate by cache budget, with intervals."""

from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.gains import hit_rate_gains
from tracekit.figures import MIB
from tracekit.plots.kinds import Choices, register
from tracekit.plots.series import policy_series
from tracekit.plots.style import BLACK, axes_or_new, budget_axis, error_bars, finish
from tracekit.policies import Retention
from tracekit.predictors import PREDICTORS
from tracekit.routing.residency import sizes_are_known
from tracekit.routing.routers import Routers
from tracekit.scoring.usable import why_unusable
from tracekit.trace import Trace
from tracekit.trace.errors import MissingDataError

FALLBACK = "prev-token"  # a predictor that every trace can run
_DODGE = 0.008  # of the axis


def _gains(trace: Trace, choices: Choices) -> pd.DataFrame:
    """Return the gains of the chosen policies, by default of retention.

    Where the predictor of retention cannot run on the trace, retention acts on `FALLBACK`, and a
    note says so.
    """
    if not sizes_are_known(trace):
        raise MissingDataError(
            "This plot has cache sizes in MiB on its axis, and the trace does not say how many bytes an "
            "expert has; `tracekit import` takes --model PATH or --expert-mib M."
        )
    notes = []
    if choices.policies is None and "retention.predictor" not in choices.params:
        predictor = PREDICTORS.find(Retention.Params().predictor)
        reason = why_unusable(trace, Routers(trace), predictor)
        if reason is not None:
            notes = [f"retention acts on {FALLBACK} here: {reason}"]
            params = {**choices.params, "retention.predictor": [FALLBACK]}
            choices = replace(choices, params=params)
    frame = hit_rate_gains(
        trace,
        choices.policies_or([Retention.name]),
        cache_bytes=choices.cache_bytes,
        bypass=choices.bypass,
        seed=choices.seed,
    )
    frame.attrs["notes"] = notes
    return frame


@register(
    "gains",
    "points of hit rate that a policy gains over LRU, by cache budget",
    _gains,
    reads=("policies", "params", "cache_bytes", "bypass"),
)
def plot_gains(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw how many more decode lookups hit than under the baseline, by cache budget.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.hit_rate_gains`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.errorbar`` for every policy.

    Returns
    -------
    Axes
        One line a policy, with bars of the 95 % interval, side by side around the level of no
        gain; the region under one token cycle is grey.
    """
    ax = axes_or_new(ax)
    ax.axhline(0, color=BLACK, linewidth=1)
    baseline = data["baseline"].iloc[0]
    series = policy_series(data)
    apart = _DODGE * data["cache_bytes"].max() / MIB
    for place, (name, look, unsorted) in enumerate(series):
        rows = unsorted.sort_values("cache_bytes")
        gain = 100 * rows["gain"]
        bars = error_bars(gain, 100 * rows["ci95_low"], 100 * rows["ci95_high"])
        budget = rows["cache_bytes"] / MIB + apart * (place - (len(series) - 1) / 2)
        ax.errorbar(budget, gain, **{**look, **bars, "label": name, **style})
    budget_axis(ax, data["cache_bytes"], data["token_cycle_bytes"].iloc[0])
    return finish(
        ax,
        title=f"Gain in decode hit rate over {baseline} (bars: 95 % intervals)",
        xlabel="cache budget (MiB)",
        ylabel=f"decode hit rate over {baseline} (points)",
    )
