"""Files that must be read at any place: as they are, or unpacked into a nameless file on disk.

In: the path of a file. Out: an open file; the entries of a zip archive; the columns of a Parquet file.
Before anything is unpacked, what the file claims is compared with its size: a few bytes that claim to
be gigabytes are refused.
"""

import gzip
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.formats.base import GZIP_MAGIC, MOST_TIMES, read_bytes
from tracekit.trace import TraceError
from tracekit.trace.limits import allowed_bytes, too_large

MOST_ENTRIES = 100_000
_PIECE = 1 << 20
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    gzip.BadGzipFile,
    struct.error,
    EOFError,
    ValueError,
    NotImplementedError,
    RuntimeError,
    KeyError,
    OverflowError,
)


@contextmanager
def damaged(name: str) -> Iterator[None]:
    """Turn what a parser of `name` raises into one sentence.

    Raises
    ------
    TraceError
    """
    try:
        yield
    except (*_DAMAGED, OSError, pa.ArrowException) as error:
        # Names of entries are part of what may be damaged.
        shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in name)
        if isinstance(error, OSError) and error.errno is not None:
            raise TraceError(f"{shown} cannot be read: {error.strerror}.") from error
        fault = str(error).splitlines()[0][:200].rstrip(".") if str(error) else type(error).__name__
        raise TraceError(f"{shown} is damaged or cut ({fault}); copy or write it again.") from error


def check_claim(path: Path, unpacked: int, packed: int) -> None:
    """Refuse `packed` bytes that claim to unpack to implausibly many.

    Raises
    ------
    TraceError
    """
    if unpacked > allowed_bytes(packed, MOST_TIMES):
        raise too_large(path, packed, MOST_TIMES, mend="unpack it to look at it")


def is_packed(path: Path) -> bool:
    """Say whether a file is compressed with gzip.

    Raises
    ------
    TraceError
        It is no file, or cannot be read.
    """
    read_bytes(path, 1)  # refuses what is no file
    with damaged(str(path)), path.open("rb") as file:
        return file.read(2) == GZIP_MAGIC


def opened(path: Path) -> IO[bytes]:
    """Open a file for reading at any place; a gzip file is unpacked into a nameless one first.

    Raises
    ------
    TraceError
        It cannot be read, is damaged, or claims too much.
    """
    is_gzip = is_packed(path)
    with damaged(str(path)):
        plain = path.open("rb")
    if not is_gzip:
        return plain
    try:
        with plain, gzip.open(plain) as unpacked:
            return spilled(path, unpacked.read, path.stat().st_size)
    except (EOFError, zlib.error, OSError) as error:
        raise TraceError(
            f"{path} is a damaged or cut gzip file ({error}); copy it again."
        ) from error


def spilled(path: Path, read: Callable[[int], bytes], packed: int) -> IO[bytes]:
    """Return a nameless file on disk with all that `read` gives, piece by piece.

    Raises
    ------
    TraceError
        It gives implausibly much for `packed` bytes.
    """
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        size = 0
        while piece := read(_PIECE):
            size += len(piece)
            check_claim(path, size, packed)
            file.write(piece)
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


class Archive:
    """The entries of a zip archive. No file stays open between calls.

    Parameters
    ----------
    path : Path

    Raises
    ------
    TraceError
        It is damaged, has entries of the same name, or too many of them.
    """

    def __init__(self, path: Path):
        self.path = path
        with opened(path) as file, damaged(str(path)), zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
        if len(entries) > MOST_ENTRIES:
            raise TraceError(f"{path} has more than {MOST_ENTRIES} entries, as no trace has.")
        self._entries = {each.filename: each for each in entries}
        if len(self._entries) < len(entries):
            raise TraceError(f"{path} has two entries of one name; write it again.")

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries."""
        return tuple(self._entries)

    def size(self, name: str) -> int:
        """Return how many bytes an entry claims to have."""
        return self._entries[name].file_size

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Give an entry for reading from its start.

        Raises
        ------
        TraceError
            It is encrypted, claims too much, or is damaged.
        """
        entry = self._entries[name]
        called = f"{self.path}, entry {name}"
        check_claim(self.path, entry.file_size, entry.compress_size)
        with (
            opened(self.path) as file,
            damaged(called),
            zipfile.ZipFile(file) as archive,
            archive.open(entry) as stream,
        ):
            yield stream

    @contextmanager
    def on_disk(self, name: str) -> Iterator[IO[bytes]]:
        """Give an entry as a nameless file that can be read at any place; errors are as of `open`."""
        with self.open(name) as stream:
            file = spilled(self.path, stream.read, self._entries[name].compress_size)
        with file:
            yield file


def member_names(path: Path) -> tuple[str, ...]:
    """Return the names of the entries of a zip archive; errors are those of `Archive`."""
    return Archive(path).names


@contextmanager
def parquet_file(path: Path) -> Iterator[pq.ParquetFile]:
    """Give a Parquet file.

    Raises
    ------
    TraceError
        It is damaged.
    """
    with (
        opened(path) as file,
        damaged(str(path)),
        pq.ParquetFile(file, page_checksum_verification=True) as table,
    ):
        yield table


def parquet_columns(path: Path) -> tuple[str, ...]:
    """Return the names of the columns of a Parquet file; errors are those of `parquet_file`."""
    with parquet_file(path) as table:
        return tuple(table.schema_arrow.names)
