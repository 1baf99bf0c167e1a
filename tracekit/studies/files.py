"""A trace that another process opens: where it lies, and the digest that says it is the same.

In: an opened trace. Out: its place, which may be sent anywhere, and from that the trace again.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from tracekit import datasets
from tracekit.formats import open_any
from tracekit.replaying.agreement import verified
from tracekit.trace import Trace
from tracekit.trace.errors import TracekitError
from tracekit.trace.urls import UrlPath


@dataclass(frozen=True)
class TraceFile:
    """A trace by its place.

    Attributes
    ----------
    name : str
        What sentences call the trace.
    place : str or UrlPath
        ``bundled:NAME``, an absolute path, or a URL.
    digest : str
    warnings : tuple of str
        What was wrong with it when it was opened; whoever opens it to run it may know more.
    """

    name: str
    place: str | UrlPath
    digest: str
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, trace: Trace, path: Path) -> "TraceFile":
        """Return the place of `trace`, which was opened at `path`."""
        place: str | UrlPath
        if isinstance(path, UrlPath):
            place = path
        elif path.parent == datasets.folder():
            place = f"{datasets.PREFIX}{path.name}"
        else:
            place = str(path.absolute())
        return cls(trace.name, place, trace.digest, tuple(trace.warnings))

    def open(self) -> Trace:
        """Open the trace on the machine that this runs on, and check that it is the same.

        Raises
        ------
        TracekitError
            There is no such trace here, or it is another one.
        """
        path, host = datasets.resolve(self.place), socket.gethostname()
        if not isinstance(path, UrlPath) and not path.exists():
            raise TracekitError(
                f"{self.place} is not on {host}, where a worker runs; put it into a folder that every "
                "worker sees under the same path."
            )
        trace = open_any(path)
        if trace.digest != self.digest:
            raise TracekitError(
                f"{self.place} on {host}, where a worker runs, is not the trace that was opened "
                "first: their digests differ; let every worker see the same file, and start again."
            )
        trace.warnings[:] = [text.replace(trace.name, self.name) for text in trace.warnings]
        trace.name = self.name
        return verified(trace)
