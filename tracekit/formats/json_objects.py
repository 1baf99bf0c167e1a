"""The JSON objects of a file, one after the other: one, an array of them, or one a line.

In: a file. Out: each object, with its large lists of numbers as arrays. No more than one object is in
memory, and its lists of numbers only as text and as arrays.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from tracekit.formats.archives import damaged, opened
from tracekit.formats.base import BOM
from tracekit.formats.given import File
from tracekit.trace import TraceError

_PIECE = 1 << 20
# A response with a context of a million tokens, 100 layers and 8 experts has less.
MOST_BYTES = 2 << 30
_MOST_DEPTH = 100
# Up to the next text or brace, and that; a text may not have its end yet.
_TOKEN = re.compile(rb'[^"{}]*(?:("[^"\\]*(?:\\.[^"\\]*)*")|([{}])|("))', re.DOTALL)
_LIST = re.compile(rb"\s{0,40}:\s{0,40}\[")
_LONGEST_KEY_END = 82
_SPACE = b" \t\r\n"
# What stands in the place of a list that was taken out; no text of a server begins with a NUL.
_MARK = "\0"


@dataclass(frozen=True)
class Object:
    """One JSON object of a file.

    Attributes
    ----------
    place : str
        What sentences call it.
    value : dict
    lists : sequence of bytes
        The texts of the lists that were taken out of it.
    """

    place: str
    value: dict[str, Any]
    lists: list[bytes]

    def numbers(self, holder: Mapping[str, Any], key: str) -> np.ndarray | None:
        """Return the nested lists of numbers under `key` of a part of the object; None: null.

        Raises
        ------
        TraceError
            They are none, or of different lengths.
        """
        # It brings a compiler, which few files need.
        from tracekit.formats.nested import nested_numbers

        value = holder.get(key)
        if value is None:
            return None
        try:
            if is_mark(value):
                return nested_numbers(self.lists[int(value[1:])])
            return nested_numbers(json.dumps(value).encode())
        except (ValueError, IndexError) as error:
            raise TraceError(
                f"{self.place}: {key} is no nested lists of whole numbers of one shape ({error}); "
                "copy or record it again."
            ) from error


class Objects:
    """The objects of a file, in its order.

    Parameters
    ----------
    path : Path
    keys : collection of str
        The values of these are lists of numbers that are taken out of the objects as text.
    called : str
        What an object is: ``"response"``.

    Attributes
    ----------
    cut : str or None
        Once all were read: how the file ends early, as the end of a sentence.
    """

    def __init__(self, path: Path, keys: Collection[str] = (), called: str = "response"):
        self.path = path
        self.cut: str | None = None
        self._keys = {f'"{key}"'.encode() for key in keys}
        self._called = called
        self._buffer = b""
        self._at = 0  # all before it was looked at
        self._start = 0  # of what is not in `_parts` yet
        self._parts: list[bytes] = []
        self._lists: list[bytes] = []
        self._n_bytes = 0
        self._n_objects = 0

    @property
    def _place(self) -> str:
        return f"{self.path}, {self._called} {self._n_objects + 1}"

    def __iter__(self) -> Iterator[Object]:
        """Read the objects once.

        Raises
        ------
        TraceError
            What stands there is no JSON, or an object is too large.
        """
        with opened(self.path) as file:
            self._file = file
            self._more()
            self._buffer = self._buffer.removeprefix(BOM)
            in_array = False
            while self._find_object():
                between = self._buffer[self._start : self._at].strip(_SPACE)
                if self._n_objects == 0:
                    in_array = between == b"["
                expected = b"" if not in_array else b"[" if self._n_objects == 0 else b","
                if between != expected:
                    raise self._damaged(between)
                self._start = self._at
                if not self._read_object():
                    self.cut = f"it ends within {self._called} {self._n_objects + 1}"
                    break
                yield self._object()
            else:
                self._check_end(in_array)
        if self._n_objects == 0:
            end = self.cut or f"it holds no {self._called}"
            raise TraceError(f"{self.path} is incomplete: {end}; copy or record it again.")

    # ---- tokens ----------------------------------------------------------------------------

    def _more(self) -> bool:
        """Read a further piece, at least as long as what is waiting, so that all is read once."""
        with damaged(str(self.path)):
            piece = self._file.read(max(_PIECE, len(self._buffer)))
        if self._n_bytes + len(self._buffer) > MOST_BYTES:
            raise TraceError(
                f"{self._place} has more than {MOST_BYTES >> 30} GiB, as no response has; the file "
                "is of another kind."
            )
        self._buffer += piece
        return bool(piece)

    def _find_object(self) -> bool:
        """Go to the brace with which the next object begins; False: there is none."""
        while (found := self._buffer.find(b"{", self._at)) < 0:
            # Between objects stands next to nothing.
            if len(self._buffer) - self._start > _PIECE:
                raise self._damaged(self._buffer[self._start : self._start + 40])
            self._at = len(self._buffer)
            if not self._more():
                return False
        self._at = found
        return True

    def _read_object(self) -> bool:
        """Go behind the object that begins here; False: the file ends before."""
        depth = 0
        while True:
            token = _TOKEN.match(self._buffer, self._at)
            if token is None or token[3] is not None:
                if not self._more():
                    return False
                continue
            if token[1] is not None:
                if token[1] not in self._keys:
                    self._at = token.end()
                elif not self._after_key(token.end()):
                    return False
                continue
            self._at = token.end()
            depth += 1 if token[2] == b"{" else -1
            if depth > _MOST_DEPTH:
                raise TraceError(
                    f"{self._place} has objects within objects {_MOST_DEPTH} times, as no response "
                    "has; the file is of another kind."
                )
            if depth == 0:
                return True

    def _after_key(self, end: int) -> bool:
        """Take out the list that follows a key; False: the file ends before."""
        while len(self._buffer) - end < _LONGEST_KEY_END and self._more():
            pass
        self._at = end
        begins = _LIST.match(self._buffer, end)
        if begins is None:
            return True
        first = searched = begins.end() - 1
        while True:
            text = self._buffer.find(b'"', searched)
            brace = self._buffer.find(b"}", searched, len(self._buffer) if text < 0 else text)
            last = text if brace < 0 else brace
            if last >= 0:
                break
            searched = len(self._buffer)
            if not self._more():
                return False
        numbers = self._buffer[first:last].rstrip(b"," + _SPACE)
        self._parts += [self._buffer[self._start : first], json.dumps(_mark(self._lists)).encode()]
        self._lists.append(numbers)
        self._n_bytes += first + len(numbers) - self._start
        self._drop(first + len(numbers))
        return True

    def _drop(self, end: int) -> None:
        """Go to `end`; what stands before it is not needed any more."""
        self._start = self._at = end
        if end > max(_PIECE, len(self._buffer) // 2):
            self._buffer = self._buffer[end:]
            self._start = self._at = 0

    # ---- objects ---------------------------------------------------------------------------

    def _object(self) -> Object:
        self._parts.append(self._buffer[self._start : self._at])
        place, lists = self._place, self._lists
        try:
            value = json.loads(b"".join(self._parts))
        except (ValueError, RecursionError) as error:
            fault = str(error).splitlines()[0][:80].rstrip(".")
            raise TraceError(f"{place} is no JSON ({fault}); copy or record it again.") from error
        self._parts, self._lists, self._n_bytes = [], [], 0
        self._drop(self._at)
        self._n_objects += 1
        return Object(place, value, lists)

    def _check_end(self, in_array: bool) -> None:
        rest = self._buffer[self._start :].strip(_SPACE)
        if in_array and rest in (b"", b","):
            self.cut = "the bracket at its end is missing"
        elif rest != (b"]" if in_array else b""):
            raise self._damaged(rest)

    def _damaged(self, rest: bytes) -> TraceError:
        shown = rest[:20].decode("latin-1").encode("unicode_escape").decode()
        before = (
            f"after {self._called} {self._n_objects}" if self._n_objects else "at its beginning"
        )
        return TraceError(
            f"{self.path}: {before} stands {shown!r}, where a {self._called} is due; copy or "
            "record it again."
        )


def is_mark(value: object) -> TypeGuard[str]:
    """Say whether a value stands for a list that was taken out of its object."""
    return isinstance(value, str) and value.startswith(_MARK)


def _mark(lists: list[bytes]) -> str:
    return f"{_MARK}{len(lists)}"


def may_hold(file: File, keys: Collection[str]) -> bool:
    """Say whether a file may hold JSON objects with one of `keys`, from its first bytes.

    Only where the first object stands on a line of its own can they tell that it has none.
    """
    text = file.first_lines.lstrip()
    if not text.startswith((b"{", b"[")):
        return False
    first, line_end, _ = text.partition(b"\n")
    if not line_end:
        return True
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return True
    return not isinstance(value, dict) or any(key in value for key in keys)
