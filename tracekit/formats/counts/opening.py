"""Open counts, by content; or whatever a user may give where either a trace or counts will do."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.datasets import resolve
from tracekit.formats.counts.expert_counts import ExpertCounts
from tracekit.formats.given import Given
from tracekit.formats.opening import as_trace, is_trace
from tracekit.trace.errors import TraceError
from tracekit.trace.local import local_copies

if TYPE_CHECKING:
    from tracekit.trace import Trace

Paths = str | Path | Sequence[str | Path]


def open_counts(path: Paths) -> ExpertCounts:
    """Open a file, a folder or several files of one run that say how often each expert was used.

    The content of a file decides on its format, not its name.

    Parameters
    ----------
    path : str, Path, or several of them

    Returns
    -------
    ExpertCounts
        int64 [layers, n_expert], with the numbers of the layers.

    Raises
    ------
    TraceError
        There is no such file, it holds no counts, or it is damaged.
    """
    from tracekit.formats.counts.all import counts_format_of

    named = [resolve(p) for p in ([path] if isinstance(path, str | Path) else path)]
    with local_copies(named) as copies:
        given = Given.of(copies.paths)
        found = counts_format_of(given)
        if found is None:
            raise TraceError(
                f"{given.name} holds no counts that tracekit knows; docs/formats.md lists them. Open "
                "a trace with open_trace."
            )
        return found.read(given)


def counts_at(path: Path) -> ExpertCounts | None:
    """Return the counts that a path names; None if it names something else, or nothing.

    Raises
    ------
    TraceError
        The file is damaged.
    """
    if is_trace([path]):
        return None
    from tracekit.formats.counts.all import counts_format_of

    with local_copies([path]) as copies:
        given = Given.of(copies.paths)
        found = counts_format_of(given)
        return None if found is None else found.read(given)


def as_trace_or_counts(given: "Trace | ExpertCounts | str | Path") -> "Trace | ExpertCounts":
    """Return a trace or counts as they are, or open what a path names.

    Raises
    ------
    TracekitError
        As for `open_any` and `open_counts`.
    """
    if isinstance(given, ExpertCounts):
        return given
    counts = counts_at(resolve(given)) if isinstance(given, str | Path) else None
    return as_trace(given) if counts is None else counts
