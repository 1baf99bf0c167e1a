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
    n_expert, moe_layers = trace.n_expert, trace.moe_layers
    place = np.zeros(int(moe_layers.max(initial=0)) + 1, np.int64)
    place[moe_layers] = np.arange(len(moe_layers))
    counts = np.zeros(len(moe_layers) * n_expert, np.int64)
    for block in trace.iter_routing(["layer", "experts"], phase):
        keys = place[block["layer"]][:, None] * n_expert + block["experts"]
        counts += np.bincount(keys.ravel(), minlength=len(counts))
    of_layers = counts.reshape(-1, n_expert)
    routed = of_layers.any(axis=1)
    numbers = tuple(moe_layers[routed].tolist())
    return ExpertCounts(of_layers[routed], numbers, trace.name, FORMAT, top_k=trace.top_k)
