"""How every command opens a trace: read it, and say on stderr what its reader must know."""

from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.console import Console

if TYPE_CHECKING:
    from tracekit.formats import ExpertCounts
    from tracekit.trace import Trace


def open_trace(path: Path, console: Console) -> "Trace":
    """Open the trace or the file to import at `path`, and warn of what is wrong with it.

    Raises
    ------
    TraceError
        There is no such file, or it is not as it should be.
    """
    from tracekit.formats import open_any

    trace = open_any(path)
    for warning in trace.warnings:
        console.warn(warning)
    return trace


def open_trace_or_counts(path: Path, console: Console) -> "Trace | ExpertCounts":
    """Open what is either a trace or counts of experts; warnings and errors as of `open_trace`."""
    from tracekit.formats.counts.opening import counts_at

    counts = counts_at(path)
    if counts is None:
        return open_trace(path, console)
    for warning in counts.warnings:
        console.warn(warning)
    return counts
