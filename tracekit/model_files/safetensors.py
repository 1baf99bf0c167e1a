"""The header of a safetensors file: names, types, shapes and places of its tensors.

In: an open file. Out: the tensors, checked against the size of the file; the values of a small one.
The data are read only where they are asked for.
"""

import json
from math import prod
from typing import IO, NamedTuple

import numpy as np

from tracekit.model_files.ggml_types import of_bf16
from tracekit.trace.errors import TraceError

# The format's own limit of a header.
_MOST_HEADER_BYTES = 100_000_000
_MOST_AXES = 16
_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}
_NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "I64": "<i8",
    "U64": "<u8",
    "F64": "<f8",
}
# Those whose values are read here.
DECODED = (*_NUMPY, "BF16")


class Stored(NamedTuple):
    """A tensor: its type as the file names it, its shape, and its bytes in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def n_bytes(self) -> int:
        """Size of the data."""
        return self.stop - self.start


class Safetensors:
    """The header of a safetensors file.

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
    tensors : dict of str to Stored
    metadata : dict
        The texts that the file carries beside its tensors.

    Raises
    ------
    TraceError
        It is no safetensors file, is cut short, or claims what cannot be.
    """

    def __init__(self, file: IO[bytes], size: int, name: str):
        self.name = name
        self._file = file
        try:
            self._read(size)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TraceError(
                f"{name} is damaged or cut short: its header cannot be read "
                f"({str(error) or type(error).__name__:.100}); copy it again."
            ) from error

    def values(self, tensor: Stored) -> np.ndarray | None:
        """Return a tensor's values in its shape; None of a type that numpy does not have.

        Values of BF16 are returned as float32.

        Raises
        ------
        TraceError
            The file ends before.
        """
        if tensor.dtype not in DECODED:
            return None
        self._file.seek(tensor.start)
        data = self._file.read(tensor.n_bytes)
        if len(data) < tensor.n_bytes:
            raise TraceError(f"{self.name} is cut short within {tensor.name:.80}; copy it again.")
        return decoded(tensor.dtype, data).reshape(tensor.shape)

    def _read(self, size: int) -> None:
        self._file.seek(0)
        length = int.from_bytes(self._file.read(8), "little")
        if not 2 <= length <= min(size - 8, _MOST_HEADER_BYTES):
            raise ValueError(f"it claims {length} bytes")
        header = json.loads(self._file.read(length))
        if not isinstance(header, dict):
            raise ValueError("it is no JSON object")
        metadata = header.pop("__metadata__", {})
        self.metadata = metadata if isinstance(metadata, dict) else {}
        self.tensors = {
            name: _stored(name, claim, 8 + length, size) for name, claim in header.items()
        }


def decoded(dtype: str, data: bytes) -> np.ndarray:
    """Return values of a type in `DECODED`; those of BF16 as float32."""
    return of_bf16(data) if dtype == "BF16" else np.frombuffer(data, _NUMPY[dtype])


def bytes_of(dtype: str) -> int:
    """Return the bytes of a value of a type in `DECODED`."""
    return _BYTES[dtype]


def _stored(name: str, claim: dict[str, object], base: int, size: int) -> Stored:
    dtype, shape, offsets = claim["dtype"], claim["shape"], claim["data_offsets"]
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list)):
        raise ValueError(f"{name:.60} has no type, shape and place")
    if len(shape) > _MOST_AXES or len(offsets) != 2:
        raise ValueError(f"{name:.60} has no shape and place")
    for number in (*shape, *offsets):
        if type(number) is not int or not 0 <= number < 1 << 62:
            raise ValueError(f"{name:.60} has a size of {number!r:.30}")
    start, stop = offsets
    if not start <= stop <= size - base:
        raise ValueError(f"{name:.60} ends at byte {base + stop}, the file at {size}")
    # Of a type that is not known here, the place alone says how large it is.
    if dtype in _BYTES and prod(shape) * _BYTES[dtype] != stop - start:
        raise ValueError(f"{name:.60} has {stop - start} bytes, which its shape {shape} has not")
    return Stored(name, dtype, tuple(shape), base + start, base + stop)
