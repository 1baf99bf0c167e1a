"""Numpy arrays in a ``.npy`` file or an entry of an archive, read block by block.

In: a file. Out: the shape and type that its header claims, checked against its size before anything
is allocated; then blocks of it. Nothing is unpickled.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from tracekit.formats.archives import Archive, damaged, opened
from tracekit.trace import TraceError

NPY_MAGIC = b"\x93NUMPY"
SUFFIX = ".npy"
_MOST_HEADER_BYTES = 10_000
_VALUE = r"'[^']{1,20}'|\"[^\"]{1,20}\"|True|False|\([\d\sL,]{0,200}\)"
_ITEM = re.compile(rf"'(descr|fortran_order|shape)'\s*:\s*({_VALUE})")
_DICT = re.compile(rf"\s*\{{\s*(?:'\w+'\s*:\s*(?:{_VALUE})\s*,?\s*){{3}}\}}\s*")
# An array that is read as a whole (lengths, layers, sizes) has no more than this.
SMALL_BYTES = 64 << 20


class DiskArray:
    """An array on disk.

    Parameters
    ----------
    name : str
        What sentences call it.
    open : callable
        Opens its file at the start.
    size : int
        Bytes of the file.
    on_disk : callable, optional
        Opens it so that it can be read at any place; `open` does if it is None.

    Attributes
    ----------
    shape : tuple of int
    dtype : np.dtype
        Of whole numbers, floats, booleans or text.

    Raises
    ------
    TraceError
        The header is damaged, of objects, or claims another size than the file has.
    """

    def __init__(
        self,
        name: str,
        open: Callable[[], AbstractContextManager[IO[bytes]]],
        size: int,
        on_disk: Callable[[], AbstractContextManager[IO[bytes]]] | None = None,
    ):
        self.name = name
        self._open, self._on_disk = open, on_disk or open
        with damaged(name), open() as file:
            self.shape, is_fortran, self.dtype = _header(name, file)
            self._start = file.tell()
        # Fortran's order of the axes is C's of the reversed ones.
        self._stored = self.shape[::-1] if is_fortran else self.shape
        self._is_fortran = is_fortran
        n_bytes = prod(self.shape) * self.dtype.itemsize
        if size - self._start != n_bytes:
            raise TraceError(
                f"{name} has {size - self._start} bytes of values where its shape {self.shape} of "
                f"{self.dtype} asks for {n_bytes}; it is cut or damaged: write it again."
            )

    def whole(self) -> np.ndarray:
        """Return the whole array, which must be small.

        Raises
        ------
        TraceError
            It is larger than any list of lengths or layers.
        """
        n_bytes = prod(self.shape) * self.dtype.itemsize
        if n_bytes > SMALL_BYTES:
            raise TraceError(f"{self.name} has {n_bytes} bytes, too many for what it is.")
        with damaged(self.name), self._open() as file:
            file.read(self._start)
            values = np.frombuffer(_exactly(file, n_bytes), self.dtype).reshape(self._stored)
            if file.read(1):  # a zip entry compares its checksum when it is read to the end
                raise ValueError("it goes on after its last value")
        return values.T if self._is_fortran else values

    def blocks(self, axis: int, ends: Sequence[int]) -> Iterator[np.ndarray]:
        """Iterate over blocks along an axis, which becomes the first.

        Parameters
        ----------
        axis : int
        ends : sequence of int
            Where the blocks end along the axis, ascending; the last is its length.

        Yields
        ------
        numpy.ndarray
            [block, other axes in their order]
        """
        stored_axis = len(self.shape) - 1 - axis if self._is_fortran else axis
        outer, inner = prod(self._stored[:stored_axis]), prod(self._stored[stored_axis + 1 :])
        read = self._in_order if outer == 1 else self._at_places
        start = 0
        for end, data in zip(ends, read(stored_axis, outer, inner, ends), strict=True):
            shape = [*self._stored]
            shape[stored_axis] = end - start
            values = np.frombuffer(data, self.dtype).reshape(shape)
            yield np.moveaxis(values.T if self._is_fortran else values, axis, 0)
            start = end

    def _in_order(
        self, axis: int, outer: int, inner: int, ends: Sequence[int]
    ) -> Iterator[bytes | bytearray]:
        with damaged(self.name), self._open() as file:
            file.read(self._start)
            start = 0
            for end in ends:
                yield _exactly(file, (end - start) * inner * self.dtype.itemsize)
                start = end
            file.read(1)

    def _at_places(
        self, axis: int, outer: int, inner: int, ends: Sequence[int]
    ) -> Iterator[bytes | bytearray]:
        with damaged(self.name), self._on_disk() as file:
            item = inner * self.dtype.itemsize
            length = self._stored[axis]
            start = 0
            for end in ends:
                data = bytearray()
                for row in range(outer):
                    file.seek(self._start + (row * length + start) * item)
                    data += _exactly(file, (end - start) * item)
                yield data
                start = end


def _exactly(file: IO[bytes], n_bytes: int) -> bytes:
    data = file.read(n_bytes) if n_bytes else b""
    if len(data) != n_bytes:
        raise EOFError(f"{n_bytes - len(data)} bytes are missing")
    return data


def _header(name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an array: its shape, whether Fortran's order, its type.

    It is a dict as Python writes it. numpy's own reader evaluates it, and fails in many ways.
    """
    text = _header_text(file)
    items = dict(_ITEM.findall(text))
    if not _DICT.fullmatch(text) or sorted(items) != ["descr", "fortran_order", "shape"]:
        raise ValueError("its header is not that of an array")
    shape = tuple(int(length) for length in re.findall(r"\d+", items["shape"]))
    dtype = _dtype(name, items["descr"].strip("'\""))
    _check_kind(name, dtype)
    return shape, items["fortran_order"] == "True", dtype


def _header_text(file: IO[bytes]) -> str:
    magic = _exactly(file, len(NPY_MAGIC) + 2)
    if not magic.startswith(NPY_MAGIC) or magic[-2] not in (1, 2, 3):
        raise ValueError("it does not begin as an array of numpy")
    size = int.from_bytes(_exactly(file, 2 if magic[-2] == 1 else 4), "little")
    if size > _MOST_HEADER_BYTES:
        raise ValueError(f"its header claims {size} bytes")
    return _exactly(file, size).decode("latin-1")


def _check_kind(name: str, dtype: np.dtype) -> None:
    if dtype.kind not in "iufbU":
        raise TraceError(f"{name} holds {dtype} and no numbers; write it as an array of numbers.")


def _dtype(name: str, descr: str) -> np.dtype:
    if descr.lstrip("|<>=") == "O":
        raise TraceError(
            f"{name} holds Python objects, which are never unpickled; write an array of numbers."
        )
    try:
        return np.dtype(descr)
    except TypeError as error:
        raise ValueError(f"its type {descr!r} is not known") from error


def npy(path: Path) -> DiskArray:
    """Return the array of a ``.npy`` file; errors are those of `DiskArray`."""
    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
    return DiskArray(str(path), lambda: opened(path), size)


class MemoryArray:
    """An array in memory, with what a `DiskArray` has.

    Parameters
    ----------
    name : str
        What sentences call it.
    values : numpy.ndarray

    Raises
    ------
    TraceError
        It holds neither numbers nor text.
    """

    def __init__(self, name: str, values: np.ndarray):
        _check_kind(name, values.dtype)
        self.name = name
        self.shape, self.dtype = values.shape, values.dtype
        self._values = values

    def whole(self) -> np.ndarray:
        """Return the whole array."""
        return self._values

    def blocks(self, axis: int, ends: Sequence[int]) -> Iterator[np.ndarray]:
        """Iterate over blocks along an axis, as `DiskArray.blocks` does."""
        values = np.moveaxis(self._values, axis, 0)
        for start, end in zip([0, *ends], ends, strict=False):
            yield values[start:end]


Array = DiskArray | MemoryArray


class Npz(Mapping[str, DiskArray]):
    """The arrays of a ``.npz`` file, by name; the case of its letters does not matter.

    Parameters
    ----------
    path : Path

    Raises
    ------
    TraceError
        The archive is damaged.
    """

    def __init__(self, path: Path):
        self.path = path
        self._archive = Archive(path)
        names = [n.removesuffix(SUFFIX) for n in self._archive.names if n.endswith(SUFFIX)]
        self._names = {name.lower(): name for name in names}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> DiskArray:
        """Return an array; errors are those of `DiskArray`."""
        archive, entry = self._archive, self._names[name] + SUFFIX
        return DiskArray(
            f"{self.path}, {name}",
            lambda: archive.open(entry),
            archive.size(entry),
            lambda: archive.on_disk(entry),
        )
