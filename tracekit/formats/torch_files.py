"""What ``torch.save`` wrote, read without torch: a zip archive with a pickle, and an entry a storage.

In: a ``.pt`` file. Out: its lists, dicts, texts and numbers, with a `Tensor` in the place of each tensor,
whose values are read when they are asked for. Nothing is called but what stands in `_NAMES`, and what a
tensor claims is compared with the size of its storage before anything is allocated.
"""

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from tracekit.formats.archives import damaged, opened
from tracekit.formats.pickles import Name, Pickle
from tracekit.trace import TraceError

# Files of torch before 1.6 begin with the pickle of this number.
OLD_MAGIC = bytes.fromhex("80028a0a6cfc9c46f9206aa85019")
PICKLE_ENTRY = "/data.pkl"
_MOST_ENTRIES = 1 << 20
_MOST_AXES = 16
# So much may be read of a file in all: each storage once or twice, whatever its tensors share.
_MOST_TIMES_READ = 4
_SMALL_BYTES = 64 << 20
BF16 = "bf16"
_STORAGES = {
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "HalfStorage": "f2",
    "BFloat16Storage": BF16,
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
_UNTYPED = "UntypedStorage"
_TYPES = {"uint16": "u2", "uint32": "u4", "uint64": "u8"}


def _item_bytes(kind: str) -> int:
    return 2 if kind == BF16 else np.dtype(kind).itemsize


@dataclass(frozen=True)
class _Storage:
    key: str
    kind: str
    n_values: int


@dataclass(frozen=True)
class Tensor:
    """A tensor of a file, not read yet.

    Attributes
    ----------
    key : str
        Of its storage.
    kind : str
        Type of its values as numpy calls it, or `BF16`.
    n_stored : int
        Values of the storage.
    offset : int
        Of its first value there.
    shape, stride : tuple of int
        In values.
    """

    key: str
    kind: str
    n_stored: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def is_integer(self) -> bool:
        """Whether its values are whole numbers."""
        return self.kind != BF16 and np.dtype(self.kind).kind in "iu"


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"a size of a tensor is {str(value)[:20]}")
    return value


def _lengths(values: object) -> tuple[int, ...]:
    if type(values) is not tuple or len(values) > _MOST_AXES:
        raise ValueError("the shape of a tensor is no list of lengths")
    return tuple(_whole(value) for value in values)


def _tensor(storage: object, offset: object, size: object, stride: object, *rest: object) -> Tensor:
    """Make a tensor of its storage, as ``_rebuild_tensor_v2`` is called."""
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor without a storage")
    shape, steps, first = _lengths(size), _lengths(stride), _whole(offset)
    if len(shape) != len(steps):
        raise ValueError("a tensor has another number of strides than of axes")
    if 0 not in shape:
        last = first + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        if last >= storage.n_values or prod(shape) > storage.n_values:
            raise ValueError(
                f"a tensor of the shape {shape} goes beyond its storage of {storage.n_values} values"
            )
    return Tensor(storage.key, storage.kind, storage.n_values, first, shape, steps)


def _tensor_of_type(
    storage: object,
    offset: object,
    size: object,
    stride: object,
    gradient: object,
    hooks: object,
    kind: object,
    *rest: object,
) -> Tensor:
    """Make a tensor of a storage of bytes, as ``_rebuild_tensor_v3`` is called."""
    found = _TYPES.get(kind.text) if isinstance(kind, Name) else None
    if found is None or not isinstance(storage, _Storage):
        raise ValueError("a tensor of an unknown type")
    n_values = storage.n_values * _item_bytes(storage.kind) // _item_bytes(found)
    return _tensor(_Storage(storage.key, found, n_values), offset, size, stride)


def _ordered_dict(*arguments: object) -> dict[Any, Any]:
    if arguments:
        raise ValueError("an OrderedDict with arguments")
    return {}


def _size(values: object = ()) -> tuple[int, ...]:
    return _lengths(values)


# The whole list: what a file of tensors needs.
_NAMES = {
    ("collections", "OrderedDict"): Name("OrderedDict", _ordered_dict),
    ("torch._utils", "_rebuild_tensor_v2"): Name("_rebuild_tensor_v2", _tensor),
    ("torch._utils", "_rebuild_tensor_v3"): Name("_rebuild_tensor_v3", _tensor_of_type),
    ("torch", "Size"): Name("Size", _size),
    ("torch.storage", _UNTYPED): Name(_UNTYPED),
    **{("torch", name): Name(name) for name in (*_STORAGES, *_TYPES)},
}

Read = Callable[[Tensor], np.ndarray]


def is_torch(head: bytes, members: Callable[[], tuple[str, ...]]) -> bool:
    """Say whether a zip archive is of torch: its first entry, or another one, is the pickle.

    Parameters
    ----------
    head : bytes
        The beginning of the file.
    members : callable
        Gives the names of the entries.
    """
    first = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if first.endswith(PICKLE_ENTRY.encode()):
        return True
    return any(name.endswith(PICKLE_ENTRY) for name in members())


class TorchFile:
    """A file of ``torch.save``. It is not open between calls.

    Parameters
    ----------
    path : Path

    Attributes
    ----------
    value : object
        What was saved: dicts, lists, tuples, texts, numbers, None, and `Tensor`.
    size : int
        Bytes of the file.

    Raises
    ------
    TraceError
        It is damaged, claims more than it holds, or asks for a name that is not on the list.
    """

    def __init__(self, path: Path):
        self.path = path
        self._name = str(path)
        with self._archive() as (archive, size):
            self._entries = self._checked(archive, size)
            names = [n for n in self._entries if n.count("/") == 1 and n.endswith(PICKLE_ENTRY)]
            if len(names) != 1:
                raise TraceError(
                    f"{path} has {len(names)} entries that end with {PICKLE_ENTRY}, where torch.save "
                    "writes one; save it again."
                )
            self._top = names[0].removesuffix(PICKLE_ENTRY)
            order = f"{self._top}/byteorder"
            self._is_big = order in self._entries and self._entry(archive, order) == b"big"
            data = self._entry(archive, names[0])
        self.size = size
        self.value = Pickle(self._name, data, _NAMES, self._storage).load()

    @contextmanager
    def _archive(self) -> Iterator[tuple[zipfile.ZipFile, int]]:
        with opened(self.path) as file:
            size = file.seek(0, os.SEEK_END)
            with self._zip(file) as archive:
                yield archive, size

    def _zip(self, file: IO[bytes]) -> zipfile.ZipFile:
        with damaged(self._name):
            return zipfile.ZipFile(file)

    def _checked(self, archive: zipfile.ZipFile, size: int) -> dict[str, zipfile.ZipInfo]:
        """Return the entries by name, which claim together no more than the file has."""
        entries = {entry.filename: entry for entry in archive.infolist()}
        if len(entries) > _MOST_ENTRIES or len(entries) < len(archive.infolist()):
            raise TraceError(
                f"{self.path} has two entries of one name, or more than {_MOST_ENTRIES} of them; "
                "save it again."
            )
        for entry in entries.values():
            if entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:
                raise TraceError(
                    f"{self.path}, entry {entry.filename[:60]!r} is compressed or encrypted, as "
                    "torch.save does not write it; save it again with torch.save."
                )
        claimed = sum(entry.file_size for entry in entries.values())
        if claimed > size:
            raise TraceError(
                f"{self.path} has {size} bytes, but its entries claim {claimed}; it is cut or "
                "damaged: save it again."
            )
        return entries

    def _entry(self, archive: zipfile.ZipFile, name: str) -> bytes:
        with damaged(f"{self.path}, entry {name}"):
            return archive.read(self._entries[name])

    def _storage(self, identity: Any) -> _Storage:
        """Return the storage of a persistent id: ("storage", class, key, location, values)."""
        if type(identity) is not tuple or len(identity) != 5 or identity[0] != "storage":
            raise ValueError("a reference to something else than a storage")
        _, kind, key, _, n_values = identity
        n_values = _whole(n_values)
        if not isinstance(kind, Name) or not (kind.text in _STORAGES or kind.text == _UNTYPED):
            raise ValueError("a storage of an unknown type")
        if not isinstance(key, str) or not (key.isascii() and key.isdecimal()):
            raise ValueError("a storage without a number")
        found = _Storage(key, _STORAGES.get(kind.text, "u1"), n_values)
        entry = self._entries.get(f"{self._top}/data/{key}")
        if entry is None or entry.file_size < n_values * _item_bytes(found.kind):
            size = "none" if entry is None else f"{entry.file_size} bytes"
            raise ValueError(f"storage {key[:20]} claims {n_values} values, but there is {size}")
        return found

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """Give a function that reads tensors, as long as the context lasts.

        It returns the values as an array of their shape; `BF16` becomes float32.

        Raises
        ------
        TraceError
            From the function: a storage is damaged; or tensors that share storages ask for many
            times the size of the file.
        """
        with self._archive() as (archive, size):
            left = _MOST_TIMES_READ * size + _SMALL_BYTES

            def read(tensor: Tensor) -> np.ndarray:
                nonlocal left
                entry = f"{self._top}/data/{tensor.key}"
                left -= self._entries[entry].file_size
                if left < 0:
                    raise TraceError(
                        f"{self.path}: its tensors ask for {_MOST_TIMES_READ} times the bytes that "
                        "it has, since many of them share a storage; save copies of them."
                    )
                return self._view(self._entry(archive, entry), tensor)

            yield read

    def _view(self, data: bytes, tensor: Tensor) -> np.ndarray:
        stored = np.dtype("u2" if tensor.kind == BF16 else tensor.kind)
        stored = stored.newbyteorder(">" if self._is_big else "<")
        values = np.frombuffer(data, stored, count=tensor.n_stored)[tensor.offset :]
        values = values.astype(stored.newbyteorder("="), copy=False)
        if 0 in tensor.shape:
            values = np.empty(tensor.shape, values.dtype)
        else:
            strides = [step * values.itemsize for step in tensor.stride]
            values = np.lib.stride_tricks.as_strided(values, tensor.shape, strides, writeable=False)
        if tensor.kind == BF16:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values
