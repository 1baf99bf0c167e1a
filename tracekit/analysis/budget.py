"""Which cache budget to look at when nobody names one."""

from tracekit.trace import Trace

DEFAULT_FRACTION = 0.25


def default_budget(trace: Trace) -> int:
    """Return the recorded cache budget in bytes, or a quarter of the expert bank."""
    if trace.budget_bytes is not None:
        return trace.budget_bytes
    return round(DEFAULT_FRACTION * int(trace.expert_bytes.sum()) * trace.n_expert)
