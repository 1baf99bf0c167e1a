"""The file in which finished work of a sweep is kept, so that a later sweep need not do it again.

In: what a figure depends on, and the figure as plain values. Out: the values, if the file has them of the
same trace, parameters, code and version of tracekit. Lines are added as work gets done: what stops
the sweep can cut the last one, and no other.
"""

import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from tracekit.own_modules import own_modules
from tracekit.trace.errors import UsageError
from tracekit.version import version

_HEADER = {"schema": "tracekit.finished/1"}


class FinishedWork:
    """A file of finished work.

    Parameters
    ----------
    path : Path
        Lines are added to it; it is made with the first one.
    is_read : bool
        Whether to take from it what it holds.

    Raises
    ------
    UsageError
        The file is another kind of file, which is left as it is.
    OSError
        The file cannot be read.

    Attributes
    ----------
    n_found : int
        How many figures it held when it was opened.
    """

    def __init__(self, path: str | Path, is_read: bool = True):
        self.path = Path(path)
        self._file: Any = None
        entries = _entries(self._lines())
        self.n_found = len(entries)
        self._former = entries if is_read else {}
        self._new: dict[str, Mapping[str, Any]] = {}
        self._taken: set[str] = set()

    @property
    def n_taken(self) -> int:
        """How many figures were taken from what it held."""
        return len(self._taken)

    @property
    def n_added(self) -> int:
        """How many figures were added."""
        return len(self._new)

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return what was kept under `key`, or None."""
        found = self._former.get(key)
        if found is None:
            return self._new.get(key)
        self._taken.add(key)
        return found

    def put(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep `value` under `key`, on disk when this returns."""
        if key in self._new:  # another seed of the study had the same bound
            return
        self._new[key] = value
        if self._file is None:
            self._file = self.path.open("ab")
            self._write_header()
        self._file.write(_line({"key": key, "value": value}))
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Remove the file, if there is one: all that it holds stands in a result table."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _write_header(self) -> None:
        if self._file.tell() == 0:
            self._file.write(_line(_HEADER))
        elif not self.path.read_bytes().endswith(b"\n"):
            self._file.write(b"\n")  # after a line that was cut

    def _lines(self) -> list[bytes]:
        if self.path.exists() and not self.path.is_file():
            raise UsageError(f"{self.path} is no file; give it another name.")
        try:
            lines = self.path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        if lines and _entry(lines[0]) != _HEADER:
            raise UsageError(
                f"{self.path} is in the way: finished work is kept there, and it is another file; give "
                "it another name."
            )
        return lines[1:]


def key_of(what: Mapping[str, Any], code: str) -> str:
    """Return the key of a figure that depends on `what`, on `code` of the user's own, and on tracekit."""
    text = json.dumps({"version": version(), "code": code, **what}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def code_of(classes: Collection[type]) -> str | None:
    """Return a digest of the modules of the user's own that `classes` stand in, and may import.

    None: one is no file, as a notebook, so that nothing can be known of its former figures.
    """
    modules = [sys.modules.get(cls.__module__) for cls in classes]
    files = {getattr(module, "__file__", None) for module in [*modules, *own_modules()]}
    sha = hashlib.sha256()
    for file in sorted(map(str, files)) if classes else ():
        try:
            sha.update(Path(file).read_bytes())
        except OSError:
            return None
    return sha.hexdigest()


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode() + b"\n"


def _entry(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _entries(lines: Iterable[bytes]) -> dict[str, dict[str, Any]]:
    """Return what is kept in `lines` by its key; lines that were cut are passed over."""
    found = (_entry(line) for line in lines)
    return {
        entry["key"]: entry["value"]
        for entry in found
        if isinstance(entry, dict) and {*entry} == {"key", "value"}
    }
