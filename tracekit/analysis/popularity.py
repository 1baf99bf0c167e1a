"""How often each expert of each layer is selected."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.formats import ExpertCounts, as_trace_or_counts
from tracekit.formats.counts.of_trace import counts_of
from tracekit.trace import Trace, TraceError, UsageError
from tracekit.trace.schema import DECODE, PREFILL

PHASES = {"prefill": PREFILL, "decode": DECODE}


def expert_popularity(
    trace: Trace | ExpertCounts | str | Path, phase: str | None = None
) -> pd.DataFrame:
    """Count the selections of every expert of every MoE layer.

    Parameters
    ----------
    trace : Trace, ExpertCounts, str or Path
    phase : {"prefill", "decode"}, optional
        Count one phase only; both by default. Counts do not tell them apart.

    Returns
    -------
    DataFrame
        One row per (layer, expert), also for experts that were never selected: ``layer``,
        ``expert``, ``selections``, ``share`` (of the layer's selections, 0 to 1; an even router
        gives 1 / n_expert), ``rank`` (0: the most selected expert of its layer; ties to the lower
        id).

    Raises
    ------
    UsageError
        An unknown phase, or one of counts.
    TraceError
        The trace holds no routing of that phase.
    """
    if phase is not None and phase not in PHASES:
        raise UsageError(f"A phase is 'prefill' or 'decode', not {phase!r}.")
    found = as_trace_or_counts(trace)
    if not isinstance(found, ExpertCounts):
        found = _counted(found, phase)
    elif phase is not None:
        raise UsageError(f"{found.name} counts all tokens together; leave the phase out.")
    layers, counts = np.array(found.layers), found.counts
    n_expert = counts.shape[1]
    order = np.argsort(-counts, axis=1, kind="stable")
    rank = np.empty_like(order)
    np.put_along_axis(rank, order, np.arange(n_expert)[None, :], axis=1)
    return pd.DataFrame(
        {
            "layer": np.repeat(layers, n_expert),
            "expert": np.tile(np.arange(n_expert), len(layers)),
            "selections": counts.ravel(),
            "share": (counts / counts.sum(axis=1, keepdims=True)).ravel(),
            "rank": rank.ravel(),
        }
    )


def _counted(trace: Trace, phase: str | None) -> ExpertCounts:
    wanted = None if phase is None else PHASES[phase]
    if not (wanted is None or (trace.steps(["phase"])["phase"] == wanted).any()):
        raise TraceError(f"{trace.name} holds no {phase} token to count.")
    return counts_of(trace, wanted)
