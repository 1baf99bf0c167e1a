"""What a format is, the registry of formats, and the choice among them by content."""

import gzip
import zlib
from pathlib import Path
from typing import ClassVar

from tracekit.datasets import resolve
from tracekit.registry import Registry
from tracekit.trace import Trace, TraceError

HEAD_BYTES = 4096
GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"


class Format:
    """A file format that can be read as a trace. Derive, set the attributes, write both methods.

    Attributes
    ----------
    name : str
        What ``tracekit info`` calls the format.
    summary : str
        One line: whose traces these are.
    """

    name: ClassVar[str]
    summary: ClassVar[str]

    def sniff(self, head: bytes) -> bool:
        """Say whether a file that begins with `head` is of this format.

        Parameters
        ----------
        head : bytes
            The first 4 KiB, decompressed and without a byte order mark.
        """
        raise NotImplementedError

    def read(self, path: Path) -> Trace:
        """Read the file `path`, which may be compressed with gzip.

        Raises
        ------
        TraceError
            The file is not as it should be; the sentence names the line and the mend.
        """
        raise NotImplementedError


FORMATS: Registry[Format] = Registry("format", Format)
register = FORMATS.register


def read_bytes(path: Path, size: int = -1) -> bytes:
    """Return the first `size` bytes of a file (-1: all), decompressed and without a BOM.

    Raises
    ------
    TraceError
        The file cannot be read or its gzip stream is damaged.
    """
    try:
        with path.open("rb") as plain:
            packed = plain.read(2) == GZIP_MAGIC
            plain.seek(0)
            if packed:
                with gzip.open(plain) as unpacked:
                    data = unpacked.read(size)
            else:
                data = plain.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{path} is a damaged or cut gzip file ({error}); copy it again."
        ) from error
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from error
    return data.removeprefix(BOM)


def as_trace(trace: Trace | str | Path) -> Trace:
    """Return `trace` if it is open already; otherwise open it as `open_any` does."""
    return trace if isinstance(trace, Trace) else open_any(trace)


def open_any(path: str | Path, validate: bool = True) -> Trace:
    """Open a trace: a ``.trace`` directory, or a file of any registered format.

    What a file is, its content says and not its name.

    Parameters
    ----------
    path : str or Path
        ``bundled:NAME`` names a trace that comes with tracekit.
    validate : bool
        Of a ``.trace`` directory: check it as it is opened. Other formats are always checked.

    Raises
    ------
    TraceError
        There is no such file, it is of no known format, or it is not as it should be.
    """
    path = resolve(path)
    if path.is_dir() or not path.exists():
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
