"""Open any trace, by content: a ``.trace`` directory, or the files of a registered format.

In: a path, several paths of one run, a ``bundled:NAME``, or a trace. Out: a trace.
"""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.datasets import resolve
from tracekit.formats.counts.expert_counts import ExpertCounts
from tracekit.formats.counts.format import no_trace
from tracekit.formats.given import Given
from tracekit.formats.options import NOTHING_SAID, ImportOptions
from tracekit.trace import Trace, TraceError, UsageError, write_trace
from tracekit.trace.build import shown
from tracekit.trace.local import local_copies
from tracekit.trace.schema import FACTS_FILE, LAYERS_FILE, ROUTING_FILE, STEPS_FILE
from tracekit.trace.urls import UrlPath

# Imported when they are used: a .trace needs none of the readers, nor what they are made of.
if TYPE_CHECKING:
    from tracekit.formats.format import Format
    from tracekit.formats.source import Imported

Paths = str | Path | Sequence[str | Path]


def open_any(path: Paths, validate: bool = True, options: ImportOptions = NOTHING_SAID) -> Trace:
    """Open a trace: a ``.trace`` directory, or what any registered format reads.

    The content of a file decides on its format, not its name.

    Parameters
    ----------
    path : str, Path, or several of them
        ``bundled:NAME`` names a trace that comes with tracekit, ``s3://…``, ``gs://…``, ``hf://…`` and
        ``https://…`` one that lies elsewhere; several files are those of one run.
    validate : bool
        Check a ``.trace`` directory as it is opened. Other formats are always checked.
    options : ImportOptions
        What the files of another format do not say themselves.

    Raises
    ------
    TraceError
        There is no such file, its format is not known, or it is damaged.
    UsageError
        Nothing of that name is bundled, or the file needs an option.
    """
    paths = _resolved(path)
    if is_trace(paths):
        trace = Trace.open(paths[0], validate)
        if options == NOTHING_SAID:
            return trace
        from tracekit.formats.sized import sized

        return sized(trace, options)
    with local_copies(paths) as copies:
        trace = format_of(Given.of(copies.paths)).read(copies.paths, options)
    trace.name = copies.called(trace.name)
    trace.warnings = list(map(copies.called, trace.warnings))
    return trace


def import_any(
    path: Paths,
    output: Path,
    options: ImportOptions = NOTHING_SAID,
    *,
    force: bool = False,
    cache_bytes: int | None = None,
) -> "Imported":
    """Write what `open_any` would open as a ``.trace`` directory, in bounded memory.

    Parameters
    ----------
    path, options
        As for `open_any`.
    output : Path
        The ``.trace`` directory to make.
    force : bool
        Replace the trace that is at `output`.
    cache_bytes : int, optional
        The budget of the engine's cache.

    Raises
    ------
    TraceError, UsageError
        As for `open_any`.
    TracekitError
        The trace cannot be written there.
    """
    from tracekit.formats.source import Imported, write_source

    paths = _resolved(path)
    if is_trace(paths):
        trace = open_any(paths, options=options)
        if cache_bytes is not None:
            trace.facts = trace.facts.with_budget(cache_bytes)
        write_trace(trace, output, force)
        names = trace.rows(ROUTING_FILE).schema.names
        return Imported(trace.facts, trace.n_rows, set(filter(trace.has, names)), trace.warnings)
    with local_copies(paths) as copies:
        given = Given.of(copies.paths)
        source = format_of(given).source(given, options)
        done = write_source(source, output, options, force=force, cache_bytes=cache_bytes)
    return replace(done, warnings=list(map(copies.called, done.warnings)))


def is_read_whole(path: Paths) -> bool:
    """Say whether `open_any` is the only way to read `path`: a trace, or a file with no chunks."""
    paths = _resolved(path)
    if is_trace(paths):
        return True
    with local_copies(paths) as copies:
        return format_of(Given.of(copies.paths)).is_read_whole


def format_of(given: Given) -> "Format":
    """Return the format of files.

    Raises
    ------
    TraceError
        A file is missing, empty, or of no format, and the sentence says what it lacks; or it holds
        counts.
    """
    from tracekit.formats.all import FORMATS
    from tracekit.formats.counts.all import counts_format_of
    from tracekit.formats.nearest import what_is_missing

    for file in given.files:
        if not file.head.strip(b"\0 \t\r\n"):
            raise TraceError(f"{file.path} is empty; record or copy it again.")
    if counts := counts_format_of(given):
        raise counts.no_trace(given)
    for format_class in sorted(FORMATS, key=lambda each: (each.is_universal, each.is_told_late)):
        reader = format_class()
        if reader.recognises(given):
            return reader
    if given.folder is not None:
        names = {file.path.name for file in given.files}
        if not names or names & {ROUTING_FILE, STEPS_FILE, LAYERS_FILE}:
            Trace.open(given.folder)  # says what a folder of a trace lacks
    raise TraceError(what_is_missing(given))


def as_trace(trace: Trace | ExpertCounts | str | Path) -> Trace:
    """Return `trace` itself, or open what it names; for functions that take a trace from a user.

    Parameters
    ----------
    trace : Trace, str or Path
        A trace; or, as for `open_any`, a path or ``bundled:NAME``. Counts are refused.

    Raises
    ------
    UsageError
        `trace` is none of these, or nothing of that name is bundled.
    TraceError
        As for `open_any`, and for counts.
    """
    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, ExpertCounts):
        raise no_trace(trace.name)
    if not isinstance(trace, (str, Path)):
        raise UsageError(
            f"A trace is given as a Trace, a path or 'bundled:NAME', not as {shown(trace)}."
        )
    return open_any(trace)


def _resolved(path: Paths) -> list[Path]:
    named = [path] if isinstance(path, (str, Path)) else list(path)
    return [resolve(each) for each in named]


def is_trace(paths: Sequence[Path]) -> bool:
    """Say whether `paths` name a ``.trace`` directory, or nothing that is there."""
    if len(paths) != 1:
        return False
    if isinstance(paths[0], UrlPath):
        from tracekit.trace.remote import is_remote_trace

        return is_remote_trace(paths[0])
    return not os.path.exists(paths[0]) or os.path.exists(paths[0] / FACTS_FILE)
