"""The header of one GGUF file: what it says of the model, and where each tensor's bytes are.

llama.cpp's own reader of GGUF files parses it. Nothing here knows a model's other files, or whether
what the header says is a model that can run.
"""

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tracekit.trace.build import on_one_line
from tracekit.trace.errors import TracekitError
from tracekit_engine import binding

EXPERT_WEIGHT = re.compile(r"blk\.(\d+)\.ffn_\w*exps\.weight")
_MAGIC = b"GGUF"
_STRING = 8
_Number: TypeAlias = (
    "ctypes._SimpleCData[int] | ctypes._SimpleCData[float] | ctypes._SimpleCData[bool]"
)
_NUMBERS: dict[int, type[_Number]] = {  # by GGUF's number of the type
    0: ctypes.c_uint8,
    1: ctypes.c_int8,
    2: ctypes.c_uint16,
    3: ctypes.c_int16,
    4: ctypes.c_uint32,
    5: ctypes.c_int32,
    6: ctypes.c_float,
    7: ctypes.c_bool,
    10: ctypes.c_uint64,
    11: ctypes.c_int64,
    12: ctypes.c_double,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's place: `file` is an index into the model's files, `start` and `stop` are offsets."""

    name: str
    type: int
    shape: tuple[int, ...]
    file: int
    start: int
    stop: int

    @property
    def n_bytes(self) -> int:
        """Size of the data."""
        return self.stop - self.start

    def slice(self, expert: int) -> tuple[int, int]:
        """Return where expert number `expert` of a stacked weight starts and stops in the file."""
        size = self.n_bytes // self.shape[-1]
        return self.start + expert * size, self.start + (expert + 1) * size


@dataclass(frozen=True)
class Metadata:
    """What a header says of the model as a whole; a number is 0 if the header does not give it.

    Attributes
    ----------
    arch, name : str
    n_layer, n_nextn : int
        Layers, and how many of them only predict tokens further on.
    n_expert, top_k, n_embd, n_ctx_train : int
    n_group, n_group_used : int
        Expert groups, and how many of them stay unmasked before top-k; 1, 1 without groups.
    top_k_by_layer : tuple of int
        `top_k` layer by layer; empty if the header gives one number for all layers.
    """

    arch: str
    name: str
    n_layer: int
    n_nextn: int
    n_expert: int
    top_k: int
    n_embd: int
    n_ctx_train: int
    n_group: int
    n_group_used: int
    top_k_by_layer: tuple[int, ...]


class Header:
    """A header that llama.cpp holds in memory; `opened` gives one.

    Parameters
    ----------
    path : Path
    pointer : int
        Address of llama.cpp's ``gguf_context``.
    """

    def __init__(self, path: Path, pointer: int):
        self.path = path
        self._pointer = pointer

    @classmethod
    @contextmanager
    def opened(cls, path: Path) -> "Iterator[Header]":
        """Read the header of the file at `path`, and free it at the end of the block.

        Raises
        ------
        TracekitError
            The file is missing, is no GGUF file, or its header is cut short.
        """
        _check_is_gguf(path)
        binding.log().clear()
        init = binding.function("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _Params)
        pointer: int | None = init(os.fsencode(path), _Params(True, None))
        if not pointer:
            raise TracekitError(
                f"{path} is damaged or cut short, its header cannot be read: "
                f"{binding.log().first_error()}."
            )
        try:
            yield cls(path, pointer)
        finally:
            binding.function("gguf_free", None, ctypes.c_void_p)(pointer)

    def metadata(self) -> Metadata:
        """Return what the header says of the model.

        Raises
        ------
        TracekitError
            It names no architecture, or gives something else where a whole number belongs.
        """
        arch = self._value("general.architecture")
        if not isinstance(arch, str):
            raise TracekitError(f"{self.path} does not name its architecture, so it is no model.")
        name = self._value("general.name")
        groups = max(1, self._whole(f"{arch}.expert_group_count"))
        top_k = self._wholes(f"{arch}.expert_used_count")
        return Metadata(
            arch=arch,
            name=name if isinstance(name, str) and name else self.path.stem,
            n_layer=self._whole(f"{arch}.block_count"),
            n_nextn=self._whole(f"{arch}.nextn_predict_layers"),
            n_expert=self._whole(f"{arch}.expert_count"),
            top_k=max(top_k, default=0),
            n_embd=self._whole(f"{arch}.embedding_length"),
            n_ctx_train=self._whole(f"{arch}.context_length"),
            n_group=groups,
            n_group_used=self._whole(f"{arch}.expert_group_used_count") if groups > 1 else 1,
            top_k_by_layer=tuple(top_k) if len(top_k) > 1 else (),
        )

    def part(self) -> tuple[int, int]:
        """Return which part of how many this file is, from 1; (1, 1) of a model in one file."""
        return self._whole("split.no") + 1, max(1, self._whole("split.count"))

    def numbers(self, prefix: str) -> Iterator[tuple[str, int | float]]:
        """Give each number under a key that begins with `prefix`, and those of arrays too."""
        for index in range(self._int("gguf_get_n_kv", ctypes.c_int64)):
            key = self._text("gguf_get_key", index)
            value = self._value(key) if key.startswith(prefix) else None
            for number in value if isinstance(value, list) else [value]:
                if isinstance(number, int | float) and not isinstance(number, bool):
                    yield key, number

    def tensors(self, file: int) -> dict[str, StoredTensor]:
        """Return the file's tensors by name.

        Parameters
        ----------
        file : int
            Index of this file among the model's files.

        Raises
        ------
        TracekitError
            The file ends before a tensor does, or another GGUF file follows in it.
        """
        file_bytes = self.path.stat().st_size
        base = self._int("gguf_get_data_offset", ctypes.c_size_t)
        found = {}
        for index in range(self._int("gguf_get_n_tensors", ctypes.c_int64)):
            name = self._text("gguf_get_tensor_name", index, errors="backslashreplace")
            start = base + self._int("gguf_get_tensor_offset", ctypes.c_size_t, index)
            stop = start + self._int("gguf_get_tensor_size", ctypes.c_size_t, index)
            kind = self._int("gguf_get_tensor_type", ctypes.c_int, index)
            if name in found:
                raise TracekitError(
                    f"{self.path} names two tensors {on_one_line(name)!r}; it is damaged: download "
                    "it again."
                )
            if stop > file_bytes:
                raise TracekitError(
                    f"{self.path} is cut short: {name} ends at byte {stop:,}, "
                    f"the file at {file_bytes:,}; download it again."
                )
            found[name] = StoredTensor(name, kind, self._shape(name, index), file, start, stop)
        self._check_ends_here(max((tensor.stop for tensor in found.values()), default=base))
        return found

    def _check_ends_here(self, end: int) -> None:
        """Refuse a file in which another one begins after the last tensor, or a bit before or later.

        A tensor may be padded, and the header of a file without tensors may be not.
        """
        slack = self._int("gguf_get_alignment", ctypes.c_size_t)
        begin = max(len(_MAGIC), end - slack)
        with self.path.open("rb") as data:
            data.seek(begin)
            found = data.read(end + slack + len(_MAGIC) - begin).find(_MAGIC)
        if found >= 0:
            raise TracekitError(
                f"{self.path} is GGUF files joined into one: the second begins at byte "
                f"{begin + found:,}. Name the first part of a split model as it was downloaded, or "
                "join the parts with llama-gguf-split --merge."
            )

    def _shape(self, name: str, index: int) -> tuple[int, ...]:
        function = binding.function(
            "gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64), ctypes.c_void_p, ctypes.c_int64
        )
        shape: tuple[int, ...] = tuple(function(self._pointer, index)[:4])
        least = 3 if EXPERT_WEIGHT.fullmatch(name) else 1  # one expert is a stack of one
        while len(shape) > least and shape[-1] == 1:
            shape = shape[:-1]
        return shape

    def _int(self, function: str, result: type, *arguments: bytes | int) -> int:
        """Call one of llama.cpp's functions about this header that return a number or an address."""
        types = [ctypes.c_char_p if isinstance(v, bytes) else ctypes.c_int64 for v in arguments]
        called = binding.function(function, result, ctypes.c_void_p, *types)
        return int(called(self._pointer, *arguments))

    def _text(self, function: str, index: int, errors: str = "replace") -> str:
        """Call one of llama.cpp's functions about this header that return a text."""
        called = binding.function(function, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)
        text: bytes = called(self._pointer, index)
        return text.decode("utf-8", errors)

    def _value(self, key: str) -> int | float | str | list[int | float] | None:
        """Return the value of a key; None if it is missing, [] for an array of something else."""
        index = self._int("gguf_find_key", ctypes.c_int64, key.encode())
        if index < 0:
            return None
        kind = self._int("gguf_get_kv_type", ctypes.c_int, index)
        if kind == _STRING:
            return self._text("gguf_get_val_str", index)
        if kind in _NUMBERS:
            data = self._int("gguf_get_val_data", ctypes.c_void_p, index)
            return _NUMBERS[kind].from_address(data).value
        kind = self._int("gguf_get_arr_type", ctypes.c_int, index)
        if kind not in _NUMBERS:
            return []
        count = self._int("gguf_get_arr_n", ctypes.c_size_t, index)
        if not count:
            return []
        data = self._int("gguf_get_arr_data", ctypes.c_void_p, index)
        return list((_NUMBERS[kind] * count).from_address(data))

    def _whole(self, key: str) -> int:
        """Return a whole number, 0 if the key is missing.

        Some models give an array with a number for each layer; the largest is returned.
        """
        return max(self._wholes(key), default=0)

    def _wholes(self, key: str) -> list[int]:
        """Return a whole number, or one for each layer; [] if the key is missing."""
        value = self._value(key)
        if value is None:
            return []
        numbers = value if isinstance(value, list) else [value]
        wholes = [each for each in numbers if type(each) is int and each >= 0]
        if not numbers or len(wholes) < len(numbers):
            raise TracekitError(f"{self.path}: {key} must be a whole number, and is {value!r:.40}.")
        return wholes


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def _check_is_gguf(path: Path) -> None:
    if not path.exists():
        raise TracekitError(f"{path} does not exist.")
    if not path.is_file():
        raise TracekitError(f"{path} is not a file; name a model's GGUF file.")
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise TracekitError(f"{path} cannot be read: {error.strerror}.") from error
    if magic != _MAGIC:
        raise TracekitError(f"{path} is not a GGUF file: it does not begin with GGUF.")
