"""How every command opens a trace: read it, and say on stderr what its reader must know."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.console import Console

if TYPE_CHECKING:
    from tracekit.formats import ExpertCounts, ImportOptions
    from tracekit.trace import Trace


def open_trace(
    path: Path | Sequence[Path],
    console: Console,
    cache_bytes: int | None = None,
    anew: bool = False,
    options: "ImportOptions | None" = None,
) -> "Trace":
    """Open the trace or the file to import at `path`, and warn of what is wrong with it.

    One that records what its cache found, and that nobody has compared with a replay, is compared.

    Parameters
    ----------
    path : Path, or several
    console : Console
    cache_bytes : int, optional
        The budget of the engine, if the file does not say it or says another.
    anew : bool
        Compare it with a replay even if somebody has done so.
    options : ImportOptions, optional
        What the user says of it beside.

    Raises
    ------
    TraceError
        There is no such file, or it is not as it should be.
    """
    from tracekit.formats import ImportOptions, open_any
    from tracekit.routing.residency import why_unverified

    trace = open_any(path, options=options or ImportOptions())
    if cache_bytes is not None:
        trace.facts = trace.facts.with_budget(cache_bytes)
    if (anew or trace.facts.current_agreement is None) and why_unverified(trace) is None:
        from tracekit.replaying.agreement import verified

        verified(trace, anew)
    for warning in trace.warnings:
        console.warn(warning)
    return trace


def open_trace_or_counts(
    path: Path, console: Console, anew: bool = False
) -> "Trace | ExpertCounts":
    """Open what is either a trace or counts of experts; the rest is as of `open_trace`."""
    from tracekit.formats.counts.opening import counts_at

    counts = counts_at(path)
    if counts is None:
        return open_trace(path, console, anew=anew)
    for warning in counts.warnings:
        console.warn(warning)
    return counts
