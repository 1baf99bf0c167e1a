"""How formats read the bytes of a file, whether it is compressed or not.

In: the path of a file. Out: its bytes, or a sentence that says why there are none. This module knows
no format.
"""

import gzip
import os
import zlib
from pathlib import Path
from typing import BinaryIO

from tracekit.trace import TraceError
from tracekit.trace.limits import allowed_bytes, too_large

GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
# A route trace in which every token selects the same experts is packed to a thirteenth.
MOST_TIMES = 100
_PIECE_BYTES = 1 << 20


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
