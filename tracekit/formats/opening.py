"""Open any trace, by content: a ``.trace`` directory, or a file of a registered format.

In: a path, a ``bundled:NAME``, or a trace. Out: a trace.
"""

import os
from pathlib import Path

from tracekit.datasets import resolve
from tracekit.formats.base import FORMATS, HEAD_BYTES, read_bytes
from tracekit.trace import Trace, TraceError, UsageError
from tracekit.trace.build import shown


def open_any(path: str | Path, validate: bool = True) -> Trace:
    """Open a trace: a ``.trace`` directory, or a file of any registered format.

    The content of a file decides on its format, not its name.

    Parameters
    ----------
    path : str or Path
        ``bundled:NAME`` names a trace that comes with tracekit.
    validate : bool
        Check a ``.trace`` directory as it is opened. Other formats are always checked.

    Raises
    ------
    TraceError
        There is no such file, its format is not known, or it is damaged.
    UsageError
        Nothing of that name is bundled.
    """
    path = resolve(path)
    if os.path.isdir(path) or not os.path.exists(path):
        return Trace.open(path, validate)
    head = read_bytes(path, HEAD_BYTES)
    if not head.strip(b"\0 \t\r\n"):
        raise TraceError(f"{path} is empty; record or copy it again.")
    for format_class in FORMATS:
        reader = format_class()
        if reader.sniff(head):
            return reader.read(path)
    known = "; ".join(f"{f.name} ({f.summary})" for f in FORMATS)
    raise TraceError(
        f"{path} is no trace that tracekit knows: it is neither a .trace directory nor {known}."
    )


def as_trace(trace: Trace | str | Path) -> Trace:
    """Return `trace` itself, or open what it names; for functions that take a trace from a user.

    Parameters
    ----------
    trace : Trace, str or Path
        A trace; or, as for `open_any`, a path or ``bundled:NAME``.

    Raises
    ------
    UsageError
        `trace` is none of these, or nothing of that name is bundled.
    TraceError
        As for `open_any`.
    """
    if isinstance(trace, Trace):
        return trace
    if not isinstance(trace, (str, Path)):
        raise UsageError(
            f"A trace is given as a Trace, a path or 'bundled:NAME', not as {shown(trace)}."
        )
    return open_any(trace)
