"""What a format is, the registry of formats, and how each reads its file.

In: the path of a file, or its first bytes. Out: for a subclass of `Format`, a trace. This module knows
no format by name.
"""

import gzip
import os
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import BinaryIO, ClassVar

from tracekit.registry import Registry
from tracekit.trace import Trace, TraceError
from tracekit.trace.limits import allowed_bytes, too_large

HEAD_BYTES = 4096
GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
# A route trace in which every token selects the same experts is packed to a thirteenth.
MOST_TIMES = 100
_PIECE_BYTES = 1 << 20


class Format(ABC):
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

    @abstractmethod
    def sniff(self, head: bytes) -> bool:
        """Say whether a file that begins with `head` is of this format.

        Parameters
        ----------
        head : bytes
            The first 4 KiB, decompressed and without a byte order mark.
        """

    @abstractmethod
    def read(self, path: Path) -> Trace:
        """Read the file `path`, which may be compressed with gzip; `read_bytes` decompresses.

        Raises
        ------
        TraceError
            The file is damaged or of another format; the sentence names place and remedy.
        """


FORMATS: Registry[Format] = Registry("format", Format)
register = FORMATS.register


def read_bytes(path: Path, size: int = -1) -> bytes:
    """Return the first `size` bytes of a file (-1: all), decompressed and without a BOM.

    Raises
    ------
    TraceError
        It is no file, cannot be read, or its gzip stream is damaged.
    """
    # To open a pipe would wait for its writer.
    if os.path.exists(path) and not os.path.isfile(path):
        raise TraceError(
            f"{path} is a directory, pipe or device and no file; name a file with the whole trace."
        )
    try:
        with path.open("rb") as plain:
            is_packed = plain.read(2) == GZIP_MAGIC
            plain.seek(0)
            data = _unpacked(path, plain, size) if is_packed else plain.read(size)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(
            f"{path} is a damaged or cut gzip file ({error}); copy it again."
        ) from error
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}.") from error
    return data.removeprefix(BOM)


def _unpacked(path: Path, packed: BinaryIO, size: int) -> bytes:
    """Return the first `size` bytes of a gzip file (-1: all).

    Raises
    ------
    TraceError
        They are more than any recording is packed to.
    """
    n_bytes = os.fstat(packed.fileno()).st_size
    most = allowed_bytes(n_bytes, MOST_TIMES)
    data = bytearray()
    with gzip.open(packed) as file:
        while piece := file.read(_PIECE_BYTES if size < 0 else min(_PIECE_BYTES, size - len(data))):
            data += piece
            if len(data) > most:
                raise too_large(
                    path, n_bytes, MOST_TIMES, mend="unpack it with gunzip to look at it"
                )
    return bytes(data)
