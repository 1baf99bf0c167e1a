"""What does a trace say about its model's routing? One function a question, a DataFrame each.

Every function takes a trace, or its path or ``bundled:NAME``, and returns tidy rows: one observation
a row, the words of the trace format as column names, units in the names. The scalars that a reader
needs beside the figures (``bank_bytes``, ``token_cycle_bytes``, ``chance``) stand in columns of their
own, so that a table written to a file still says everything. `tracekit.plots` draws these frames.
"""

from tracekit.analysis.accuracy import (
    accuracy_by_history,
    accuracy_by_horizon,
    accuracy_by_layer,
    recall_by_named,
)
from tracekit.analysis.budget import default_budget
from tracekit.analysis.closure import closures
from tracekit.analysis.concentration import routing_concentration
from tracekit.analysis.curves import hit_rate_curves
from tracekit.analysis.gains import hit_rate_gains
from tracekit.analysis.layer_times import layer_times
from tracekit.analysis.overlap import overlap_by_lag
from tracekit.analysis.pinning import hottest_experts
from tracekit.analysis.popularity import expert_popularity
from tracekit.analysis.reuse import reuse_distance
from tracekit.analysis.runs import read_bytes_by_token, residency_timeline
from tracekit.analysis.times import time_by_read, time_curves
from tracekit.analysis.working_set import working_set

__all__ = [
    "accuracy_by_history",
    "accuracy_by_horizon",
    "accuracy_by_layer",
    "closures",
    "default_budget",
    "expert_popularity",
    "hit_rate_curves",
    "hit_rate_gains",
    "hottest_experts",
    "layer_times",
    "overlap_by_lag",
    "read_bytes_by_token",
    "recall_by_named",
    "residency_timeline",
    "reuse_distance",
    "routing_concentration",
    "time_by_read",
    "time_curves",
    "working_set",
]
