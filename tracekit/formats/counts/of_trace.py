"""The counts that a trace holds: how often its tokens used each expert.

In: a trace. Out: counts, as a file of counts holds them. This module reads no file.
"""

import numpy as np

from tracekit.formats.counts.expert_counts import ExpertCounts
from tracekit.trace import Trace

FORMAT = ".trace"


def counts_of(trace: Trace, phase: int | None = None) -> ExpertCounts:
    """Count the selections of every expert of every MoE layer.

    Parameters
    ----------
    trace : Trace
    phase : int, optional
        Of this phase only: `PREFILL` or `DECODE`.

    Returns
    -------
    ExpertCounts
        Of the layers that routed.

    Raises
    ------
    TraceError
        The trace holds no routing of that phase.
    """
    routing = trace.routing(["phase", "layer", "experts"])
    layer, experts = routing["layer"], routing["experts"]
    if phase is not None:
        rows = routing["phase"] == phase
        layer, experts = layer[rows], experts[rows]
    layers, place = np.unique(layer, return_inverse=True)
    n_expert = trace.n_expert
    keys = place[:, None] * n_expert + experts
    counts = np.bincount(keys.ravel(), minlength=len(layers) * n_expert).reshape(-1, n_expert)
    numbers = tuple(layers.tolist())
    return ExpertCounts(counts, numbers, trace.name, FORMAT, top_k=trace.top_k)
