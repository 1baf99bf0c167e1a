"""What a trace says about its model's routing: one function a question, a DataFrame each.

Every function takes an open trace and returns tidy rows: one observation a row, the words of the
trace format as column names, units in the names. The scalars that a reader needs beside the
figures (``bank_bytes``, ``token_cycle_bytes``, ``chance``) stand in columns of their own, so that
a table written to a file still says everything. `tracekit.plots` draws these frames.
"""

from tracekit.analysis.concentration import routing_concentration
from tracekit.analysis.overlap import overlap_by_lag
from tracekit.analysis.popularity import expert_popularity
from tracekit.analysis.working_set import working_set

__all__ = [
    "expert_popularity",
    "overlap_by_lag",
    "routing_concentration",
    "working_set",
]
