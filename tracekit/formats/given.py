"""The files that a user named, as formats tell them apart: by what is in them, not by their names.

In: paths. Out: their first bytes, the names of what an archive or a table in them holds.
"""

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.formats.base import read_bytes
from tracekit.trace.errors import TraceError, UsageError

if TYPE_CHECKING:
    from tracekit.formats.torch_files import TorchFile

HEAD_BYTES = 4096
# A folder of more files is no run of any tool; it is not searched any further.
MOST_FILES = 100_000
_PIECE = 1 << 20
ZIP_MAGIC = b"PK\x03\x04"
PARQUET_MAGIC = b"PAR1"


class File:
    """One file that may be of a format.

    Attributes
    ----------
    path : Path
    """

    def __init__(self, path: Path):
        self.path = path
        self._absent: set[bytes] = set()  # words that the whole file was searched for

    def __repr__(self) -> str:
        return f"File({str(self.path)!r})"

    @cached_property
    def head(self) -> bytes:
        """The first 4 KiB, decompressed and without a byte order mark.

        Raises
        ------
        TraceError
            The file cannot be read.
        """
        return read_bytes(self.path, HEAD_BYTES)

    @cached_property
    def first_lines(self) -> bytes:
        """The first two lines, decompressed, if they are of text and not longer than 1 MiB.

        Raises
        ------
        TraceError
            The file cannot be read.
        """
        text = self.head
        if text.count(b"\n") < 2 and len(text) == HEAD_BYTES and b"\0" not in text:
            text = read_bytes(self.path, _PIECE)
        return b"".join(text.splitlines(keepends=True)[:2])

    def mentions(self, *words: bytes) -> bool:
        """Say whether all of `words` stand anywhere in the file; it is read to the last of them.

        Raises
        ------
        TraceError
            The file cannot be read.
        """
        from tracekit.formats.archives import opened

        left = set(words)
        if left & self._absent:
            return False
        longest = max(map(len, words))
        before = b""
        with opened(self.path) as file:
            while left and (piece := file.read(_PIECE)):
                text = before + piece
                left = {word for word in left if word not in text}
                before = piece[-longest:]
        self._absent |= left
        return not left

    @cached_property
    def members(self) -> tuple[str, ...]:
        """Names of the entries of a zip archive; of another file none.

        Raises
        ------
        TraceError
            The archive is damaged.
        """
        if not self.head.startswith(ZIP_MAGIC):
            return ()
        from tracekit.formats.archives import member_names

        return member_names(self.path)

    @cached_property
    def torch(self) -> "TorchFile | None":
        """What ``torch.save`` wrote, read without torch; of another file None.

        Raises
        ------
        TraceError
            It is damaged, or asks for what a file of tensors does not need.
        """
        if not self.head.startswith(ZIP_MAGIC):
            return None
        from tracekit.formats.torch_files import TorchFile, is_torch

        return TorchFile(self.path) if is_torch(self.head, lambda: self.members) else None

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a Parquet file; of another file none.

        Raises
        ------
        TraceError
            The file is damaged.
        """
        if not self.head.startswith(PARQUET_MAGIC):
            return ()
        from tracekit.formats.archives import parquet_columns

        return parquet_columns(self.path)


@dataclass(frozen=True)
class Given:
    """What a user named: a file, several files of one run, or a folder of them.

    Attributes
    ----------
    files : sequence of File
        In the order given; those of a folder by name, its subfolders too.
    folder : Path or None
        The folder, if one was named.
    """

    files: Sequence[File] = field(default_factory=list)
    folder: Path | None = None

    @property
    def name(self) -> str:
        """What sentences call it."""
        if self.folder is not None:
            return str(self.folder)
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0].path}{more}"

    @classmethod
    def of(cls, paths: Path | Sequence[Path]) -> "Given":
        """Look at what `paths` name.

        Raises
        ------
        UsageError
            A folder is named beside other paths, or nothing is.
        TraceError
            A folder cannot be read or has too many files.
        """
        named = [paths] if isinstance(paths, Path) else list(paths)
        if not named:
            raise UsageError("No file is named; name at least one.")
        folders = [path for path in named if os.path.isdir(path)]
        if not folders:
            if twice := _named_twice(named):
                raise UsageError(f"{twice} is named twice; name each file of a run once.")
            return cls([File(path) for path in named])
        if len(named) > 1:
            raise UsageError(f"{folders[0]} is a folder; name either one folder or files.")
        found = _files_in(named[0])
        shown = [path for path in found if not _is_hidden(path, named[0])]
        return cls([File(path) for path in shown or found], named[0])


def _named_twice(paths: Sequence[Path]) -> Path | None:
    seen: set[str] = set()
    for path in paths:
        if (real := os.path.realpath(path)) in seen:
            return path
        seen.add(real)
    return None


def _is_hidden(path: Path, folder: Path) -> bool:
    """Say whether a system has put a file into a folder, as ``.DS_Store`` or Spark's ``_SUCCESS``."""
    return any(part.startswith((".", "_")) for part in path.relative_to(folder).parts)


def _by_number(name: str) -> tuple[list[str | int], str]:
    """Return a key that puts ``step_2`` before ``step_10``: a file may go on with the one before."""
    parts: list[str | int] = list(re.split("([0-9]+)", name))
    parts[1::2] = [int(part) for part in parts[1::2]]
    return parts, name


def _files_in(folder: Path) -> list[Path]:
    found: list[Path] = []

    def refuse(error: OSError) -> None:
        raise TraceError(f"{error.filename} cannot be read: {error.strerror or error}.") from error

    for inside, folders, names in os.walk(folder, onerror=refuse):
        folders.sort(key=_by_number)
        paths = (Path(inside, name) for name in sorted(names, key=_by_number))
        found += (path for path in paths if path.is_file())
        if len(found) > MOST_FILES:
            raise TraceError(
                f"{folder} has more than {MOST_FILES} files, so it is no run of a tool; name the "
                "folder of one run."
            )
    return found


def missing(given: Given, flags: str, why: str) -> UsageError:
    """Return the error about a file that can only be imported with flags.

    Parameters
    ----------
    given : Given
    flags : str
        The flags as a user types them: ``--top-k K``.
    why : str
        What the file does not say: ``how many experts a token selects``.
    """
    if not given.files:
        return UsageError(f"The arrays do not say {why}; the argument `layers` does.")
    paths = [given.folder] if given.folder is not None else [file.path for file in given.files]
    command = shlex.join(["tracekit", "import", *(str(path) for path in paths)])
    return UsageError(
        f"{given.name} does not say {why}; import it with `{command} {flags} -o NAME.trace`."
    )
