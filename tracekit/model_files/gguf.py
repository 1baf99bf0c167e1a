"""The header of one GGUF file: its keys, and where the data of each tensor are.

In: an open file. Out: keys, tensors, the values of a small tensor. Whatever the header claims is
compared with the size of the file before anything is read or looped over. It needs no package: the
engine reads headers with llama.cpp, which a laptop that only replays does not have, and the package
``gguf`` maps the whole file, makes an array of every word of the vocabulary and brings `requests`.
"""

import struct
from dataclasses import dataclass
from typing import IO, TypeAlias

import numpy as np

from tracekit.model_files.ggml_types import KINDS, Kind, n_bytes, values
from tracekit.trace.errors import TraceError

MAGIC = b"GGUF"
Value: TypeAlias = int | float | bool | str | list[int] | list[float] | list[bool] | None
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
# Far beyond what models have; a header that claims more is damaged.
_MOST_KEYS, _MOST_TENSORS, _MOST_WORDS = 1 << 16, 1 << 20, 1 << 23
_LONGEST_NAME, _LONGEST_KEPT = 1 << 16, 1 << 16
_MOST_AXES = 4
_WINDOW = 1 << 20


@dataclass(frozen=True)
class Tensor:
    """A tensor: its shape as numpy has it, the fastest axis last, and its bytes in the file."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def n_bytes(self) -> int:
        """Size of the data."""
        return self.stop - self.start


class Gguf:
    """The header of a GGUF file.

    Parameters
    ----------
    file : file
        Open for reading at any place.
    size : int
        Bytes of the file.
    name : str
        What sentences call it.

    Attributes
    ----------
    keys : dict
        A value of text, number or truth, or a list of numbers. None stands for an array of texts,
        or of more than 65,536 numbers.
    tensors : dict of str to Tensor

    Raises
    ------
    TraceError
        It is no GGUF file, is cut short, or claims what cannot be.
    """

    def __init__(self, file: IO[bytes], size: int, name: str):
        self.name = name
        self._file = file
        try:
            self._read(_Cursor(file, size))
        except (struct.error, ValueError, OverflowError) as error:
            raise TraceError(
                f"{name} is damaged or cut short: {error}; download it again."
            ) from error

    def text(self, key: str) -> str | None:
        """Return the text of a key; None if it is missing or something else."""
        value = self.keys.get(key)
        return value if isinstance(value, str) else None

    def wholes(self, key: str) -> list[int]:
        """Return a whole number, or one for each layer; [] if the key is missing.

        Raises
        ------
        TraceError
            It gives something else.
        """
        value = self.keys.get(key, [])
        numbers = value if isinstance(value, list) else [value]
        wholes = [each for each in numbers if type(each) is int and each >= 0]
        if len(wholes) < len(numbers):
            raise TraceError(f"{self.name}: {key} must be a whole number, and is {value!r:.40}.")
        return wholes

    def whole(self, key: str) -> int:
        """Return a whole number, the largest of several; 0 if the key is missing."""
        return max(self.wholes(key), default=0)

    def number(self, key: str) -> float | None:
        """Return a number; None if the key is missing or something else."""
        value = self.keys.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else None  # type: ignore[arg-type]

    def values(self, tensor: Tensor) -> np.ndarray | None:
        """Return a tensor's values, float32 in its shape; None of a type that is not decoded here.

        Raises
        ------
        TraceError
            The file ends before.
        """
        self._file.seek(tensor.start)
        data = self._file.read(tensor.n_bytes)
        if len(data) < tensor.n_bytes:
            raise TraceError(f"{self.name} is cut short within {tensor.name}; download it again.")
        found = values(tensor.kind, data)
        return None if found is None else found.reshape(tensor.shape)

    def _read(self, cursor: "_Cursor") -> None:
        if cursor.take(4) != MAGIC:
            raise TraceError(f"{self.name} is no GGUF file: it does not begin with GGUF.")
        version = cursor.number("I")
        if version not in _VERSIONS:
            raise TraceError(
                f"{self.name} is of GGUF version {version}, and {_VERSIONS[0]} and {_VERSIONS[1]} "
                "are read; convert it again (a big-endian file cannot be read)."
            )
        n_tensors, n_keys = cursor.count(_MOST_TENSORS, 24), cursor.count(_MOST_KEYS, 13)
        self.keys: dict[str, Value] = {}
        for _ in range(n_keys):
            key = cursor.text(_LONGEST_NAME)
            self.keys[key] = cursor.value(cursor.number("I"))
        claims = [cursor.tensor() for _ in range(n_tensors)]
        alignment = self.whole("general.alignment") or 32
        base = -(-cursor.at // alignment) * alignment
        self.tensors: dict[str, Tensor] = {}
        for name, shape, kind, offset in claims:
            start = base + offset
            stop = start + n_bytes(kind, shape)
            if stop > cursor.size:
                raise ValueError(f"{name!r:.80} ends at byte {stop}, the file at {cursor.size}")
            self.tensors[name] = Tensor(name, kind, shape, start, stop)


class _Cursor:
    """A place in a file that moves on as values are read; a claim beyond the end is a ValueError."""

    def __init__(self, file: IO[bytes], size: int):
        self.size = size
        self._file = file
        self._start = 0  # of the window in the file
        self._window = b""
        self._next = 0  # place in the window
        file.seek(0)

    @property
    def at(self) -> int:
        return self._start + self._next

    def take(self, n: int) -> bytes:
        """Return the next `n` bytes."""
        if n > self.size - self.at:
            raise ValueError(f"{n} bytes are needed at byte {self.at}, and it has {self.size}")
        if self._next + n > len(self._window):
            self._start = self.at
            self._file.seek(self._start)
            self._window, self._next = self._file.read(max(n, _WINDOW)), 0
            if len(self._window) < n:
                raise ValueError(f"it ends at byte {self._start + len(self._window)}")
        data = self._window[self._next : self._next + n]
        self._next += n
        return data

    def skip(self, n: int) -> None:
        """Go on by `n` bytes."""
        if n > self.size - self.at:
            raise ValueError(f"{n} bytes are needed at byte {self.at}, and it has {self.size}")
        self._next += n
        if self._next > len(self._window):
            self._start, self._window, self._next = self.at, b"", 0

    def number(self, form: str) -> int:
        value: int = struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]
        return value

    def count(self, most: int, least_bytes: int) -> int:
        """Return how many entries follow, of at least `least_bytes` each."""
        n = self.number("Q")
        if n > most or n * least_bytes > self.size - self.at:
            raise ValueError(f"it claims {n} entries at byte {self.at}")
        return n

    def text(self, longest: int) -> str:
        n = self.number("Q")
        if n > longest:
            raise ValueError(f"it claims a name of {n} bytes at byte {self.at}")
        return self.take(n).decode("utf-8", "backslashreplace")

    def value(self, kind: int) -> Value:
        if kind == _STRING:
            length = self.number("Q")
            if length > _LONGEST_KEPT:  # a chat template or a licence
                self.skip(length)
                return None
            return self.take(length).decode("utf-8", "backslashreplace")
        if kind == _ARRAY:
            return self._array(self.number("I"))
        if kind not in _NUMBERS:
            raise ValueError(f"it names the type {kind}, which there is not, at byte {self.at}")
        return self.number(_NUMBERS[kind])

    def _array(self, kind: int) -> Value:
        if kind == _STRING:
            for _ in range(self.count(_MOST_WORDS, 8)):
                self.skip(self.number("Q"))
            return None
        if kind not in _NUMBERS:
            raise ValueError(f"it names an array of the type {kind} at byte {self.at}")
        form = _NUMBERS[kind]
        each = struct.calcsize(form)
        n = self.count(1 << 62, each)
        if n > _LONGEST_KEPT:
            self.skip(n * each)
            return None
        return list(struct.unpack(f"<{n}{form}", self.take(n * each)))

    def tensor(self) -> tuple[str, tuple[int, ...], Kind, int]:
        """Return name, shape, type and offset of the next tensor."""
        name = self.text(_LONGEST_NAME)
        n_axes = self.number("I")
        if not 1 <= n_axes <= _MOST_AXES:
            raise ValueError(f"{name!r:.80} has {n_axes} axes")
        shape = struct.unpack(f"<{n_axes}Q", self.take(8 * n_axes))[::-1]
        kind = self.number("I")
        if kind not in KINDS:
            raise ValueError(f"{name!r:.80} has the type {kind}, which this tracekit does not know")
        if any(not 1 <= n <= 1 << 40 for n in shape):
            raise ValueError(f"{name!r:.80} has the shape {shape}")
        return name, shape, KINDS[kind], self.number("Q")
