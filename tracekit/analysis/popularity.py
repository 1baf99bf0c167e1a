"""How often each expert of each layer is selected."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.formats import ExpertCounts, as_trace_or_counts
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
    trace = as_trace_or_counts(trace)
    if isinstance(trace, ExpertCounts):
        if phase is not None:
            raise UsageError(f"{trace.name} counts all tokens together; leave the phase out.")
        layers, counts = np.array(trace.layers), trace.counts
    else:
        layers, counts = _counted(trace, phase)
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


def _counted(trace: Trace, phase: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the layers that routed, and how often each of their experts was selected [L, n]."""
    routing = trace.routing(["phase", "layer", "experts"])
    layer, experts = routing["layer"], routing["experts"]
    if phase is not None:
        rows = routing["phase"] == PHASES[phase]
        layer, experts = layer[rows], experts[rows]
    if not len(layer):
        raise TraceError(f"{trace.name} holds no {phase or 'routed'} token to count.")
    layers = np.unique(layer)
    n_expert = trace.n_expert
    keys = np.searchsorted(layers, layer)[:, None] * n_expert + experts
    counts = np.bincount(keys.ravel(), minlength=len(layers) * n_expert).reshape(-1, n_expert)
    return layers, counts
