"""How formats read the bytes of a file, whether it is compressed or not.

In: the path of a file. Out: its bytes, or a sentence that says why there are none. This module knows
no format.
"""

import gzip
import os
import zlib
from pathlib import Path

from tracekit.trace import TraceError

GZIP_MAGIC = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"


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
            if is_packed:
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
