"""Which cache budget to look at when nobody names one."""

from pathlib import Path

from tracekit.formats import as_trace
from tracekit.replaying.budgets import checked_bytes
from tracekit.trace import Trace

DEFAULT_FRACTION = 0.25


def budget_of(trace: Trace, cache_bytes: int | None) -> int:
    """Return `cache_bytes`, or the default budget of `trace` if it is None.

    Raises
    ------
    UsageError
        `cache_bytes` is not a size in bytes.
    """
    return default_budget(trace) if cache_bytes is None else checked_bytes(cache_bytes)


def default_budget(trace: Trace | str | Path) -> int:
    """Return the recorded cache budget in bytes, or a quarter of the expert bank."""
    trace = as_trace(trace)
    if trace.budget_bytes is not None:
        return trace.budget_bytes
    return round(DEFAULT_FRACTION * trace.bank_bytes)
