"""A model's GGUF files: what they say of the model, and where each tensor's bytes lie."""

import ctypes
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tracekit.trace.errors import TracekitError
from tracekit_engine import binding

_EXPERTS = re.compile(r"blk\.(\d+)\.ffn_\w*exps\.weight")
_LAYER = re.compile(r"blk\.(\d+)\.")
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_STRING = 8
_NUMBERS = {  # by GGUF's numbers of types
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
    """A tensor's place: `file` counts the model's files; `start` and `stop` are offsets in it."""

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
class ModelFile:
    """What the files of a model say.

    Attributes
    ----------
    paths : tuple of Path
        The file, or the files of a split model in order.
    arch, name : str
    quantisation : str
        The type that holds most of the expert weights: ``"Q4_K"``.
    n_layer, n_nextn, n_expert, top_k, n_embd, n_ctx_train : int
        0 where the file does not say. `n_nextn` layers of `n_layer` only predict tokens further on.
    n_group, n_group_used : int
        Expert groups and how many stay in the running; 1, 1 without groups.
    tensors : dict of str to StoredTensor
    """

    paths: tuple[Path, ...]
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
    tensors: dict[str, StoredTensor]

    @classmethod
    def open(cls, path: str | Path) -> "ModelFile":
        """Read the headers of the model at `path`.

        Raises
        ------
        TracekitError
            The file is missing, is no GGUF, is cut short, is one of a split model of which others
            are missing or which does not start here, holds a dense model, or says of its experts
            or layers what cannot be.
        """
        paths = _all_files(Path(path))
        tensors: dict[str, StoredTensor] = {}
        facts: dict[str, int | str] = {}
        for index, each in enumerate(paths):
            with _Header.reading(each) as header:
                if index == 0:
                    facts = header.facts()
                    header.check_floats(f"{facts['arch']}.")
                tensors.update(header.tensors(index))
        model = cls(paths=paths, tensors=tensors, **facts)
        if not model.n_expert and not any(map(_EXPERTS.fullmatch, tensors)):
            raise TracekitError(
                f"{path} is a dense model ({model.arch}): it has no experts to record."
            )
        for key, value, can_be, why in model._rules():
            if not can_be:
                said = f"{model.arch}.{key} is {value or '0 or missing'}"
                raise TracekitError(f"{path}: {said}, which cannot be: {why}.")
        return model

    def _rules(self) -> Iterator[tuple[str, int, bool, str]]:
        """Give what must hold in any architecture: key, value, whether it can be, and why not.

        llama.cpp aborts, rather than complains, where most of these do not hold.
        """
        layers = {int(named[1]) for named in map(_LAYER.match, self.tensors) if named}
        held = max(layers, default=-1) + 1
        stacks = {t.shape[-1] for t in self.tensors.values() if _EXPERTS.fullmatch(t.name)}
        n, k, groups, used = self.n_expert, self.top_k, self.n_group, self.n_group_used
        of = " or ".join(map(str, sorted(stacks))) or "no"
        run = self.n_layer - self.n_nextn
        divides = groups == 1 or (groups < n and n % groups == 0)
        fits = groups == 1 or 0 < used < groups
        layered = f"the file holds {held} layers, and nextn_predict_layers is {self.n_nextn}"
        yield "block_count", self.n_layer, 0 < run <= held, layered
        yield "expert_count", n, n > 0 and n in stacks, f"its weights are of {of} experts"
        yield "expert_used_count", k, 0 < k <= n, f"the model has {n} experts"
        yield "expert_group_count", groups, divides, f"{n} experts do not make so many groups"
        yield "expert_group_used_count", used, fits, f"some of {groups} groups are used, not all"

    @cached_property
    def expert_tensors(self) -> dict[int, list[StoredTensor]]:
        """Stacked expert weights by layer, as far as their names tell."""
        found: dict[int, list[StoredTensor]] = {}
        for tensor in self.tensors.values():
            named = _EXPERTS.fullmatch(tensor.name)
            if named and tensor.shape[-1] == self.n_expert:
                found.setdefault(int(named[1]), []).append(tensor)
        return dict(sorted(found.items()))

    @cached_property
    def expert_bytes(self) -> dict[int, int]:
        """Bytes of one expert by layer."""
        return {
            layer: sum(tensor.n_bytes // self.n_expert for tensor in tensors)
            for layer, tensors in self.expert_tensors.items()
        }

    @cached_property
    def dense_bytes(self) -> dict[int, int]:
        """Bytes of a layer's other weights, by layer; -1: weights that belong to no layer."""
        experts = {tensor.name for group in self.expert_tensors.values() for tensor in group}
        sizes: dict[int, int] = {}
        for tensor in self.tensors.values():
            if tensor.name not in experts:
                layer = _LAYER.match(tensor.name)
                key = int(layer[1]) if layer else -1
                sizes[key] = sizes.get(key, 0) + tensor.n_bytes
        return sizes

    @cached_property
    def quantisation(self) -> str:
        """The type that holds most bytes of the experts: ``"Q4_K"``, ``"MXFP4"``."""
        sizes: dict[int, int] = {}
        for group in self.expert_tensors.values():
            for tensor in group:
                sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.n_bytes
        type_name = binding.function("ggml_type_name", ctypes.c_char_p, ctypes.c_int)
        return type_name(max(sizes, key=sizes.__getitem__)).decode().upper()

    @property
    def file_bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.paths)


def cut_while_used(path: Path, n_bytes: int) -> TracekitError:
    """Return what to raise where a file has become shorter than it was: `n_bytes` now."""
    return TracekitError(
        f"{path} was cut to {n_bytes:,} bytes while it was in use; restore it and record again."
    )


def _all_files(path: Path) -> tuple[Path, ...]:
    split = _SPLIT.fullmatch(path.name)
    if not split:
        return (path,)
    stem, number, count = split[1], int(split[2]), int(split[3])
    if not 1 <= number <= count:
        raise TracekitError(f"{path} is named as part {number} of {count}, which cannot be.")
    if number != 1:
        first = path.with_name(f"{stem}-00001-of-{count:05}.gguf")
        raise TracekitError(
            f"{path} is part {number} of a split model; name its first: {first.name}"
        )
    paths = tuple(path.with_name(f"{stem}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1))
    missing = [each.name for each in paths[1:] if not each.is_file()]
    if missing and path.is_file():
        raise TracekitError(f"{path} is a split model, and {missing[0]} is not beside it.")
    return paths


class _Params(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


class _Header:
    """One file's header, as llama.cpp's own reader of GGUF files gives it."""

    def __init__(self, path: Path, pointer: int):
        self.path = path
        self._pointer = pointer

    @classmethod
    @contextmanager
    def reading(cls, path: Path) -> "Iterator[_Header]":
        if not path.is_file():
            raise TracekitError(
                f"{path} does not exist."
                if not path.exists()
                else f"{path} is not a file; name a model's GGUF file."
            )
        try:
            with path.open("rb") as file:
                magic = file.read(4)
        except OSError as error:
            raise TracekitError(f"{path} cannot be read: {error.strerror}.") from error
        if magic != b"GGUF":
            raise TracekitError(f"{path} is not a GGUF file: it does not begin with GGUF.")
        binding.log().forget()
        init = binding.function("gguf_init_from_file", ctypes.c_void_p, ctypes.c_char_p, _Params)
        pointer = init(os.fsencode(path), _Params(True, None))
        if not pointer:
            raise TracekitError(
                f"{path} is damaged or cut short, its header cannot be read: {binding.log().complaint()}."
            )
        try:
            yield cls(path, pointer)
        finally:
            binding.function("gguf_free", None, ctypes.c_void_p)(pointer)

    def _ask(self, name: str, result: type, *values: object) -> int | bytes:
        kinds = [ctypes.c_char_p if isinstance(v, bytes) else ctypes.c_int64 for v in values]
        return binding.function(name, result, ctypes.c_void_p, *kinds)(self._pointer, *values)

    def _value(self, key: str) -> int | float | str | list[int | float] | None:
        index = self._ask("gguf_find_key", ctypes.c_int64, key.encode())
        if index < 0:
            return None
        kind = self._ask("gguf_get_kv_type", ctypes.c_int, index)
        if kind == _STRING:
            return self._ask("gguf_get_val_str", ctypes.c_char_p, index).decode("utf-8", "replace")
        if kind in _NUMBERS:
            data = self._ask("gguf_get_val_data", ctypes.c_void_p, index)
            return _NUMBERS[kind].from_address(data).value
        kind = self._ask("gguf_get_arr_type", ctypes.c_int, index)
        if kind not in _NUMBERS:
            return []
        count = self._ask("gguf_get_arr_n", ctypes.c_size_t, index)
        data = self._ask("gguf_get_arr_data", ctypes.c_void_p, index)
        return list((_NUMBERS[kind] * count).from_address(data)) if count else []

    def _number(self, key: str, default: int = 0) -> int:
        """Return a whole number; of an array of them, one for each layer, the largest."""
        value = self._value(key)
        if value is None:
            return default
        numbers = value if isinstance(value, list) else [value]
        if not numbers or any(type(each) is not int or each < 0 for each in numbers):
            raise TracekitError(f"{self.path}: {key} must be a whole number, and is {value!r:.40}.")
        return max(numbers)

    def check_floats(self, prefix: str) -> None:
        """Refuse keys that are nan, and negative epsilons."""
        for index in range(self._ask("gguf_get_n_kv", ctypes.c_int64)):
            key = self._ask("gguf_get_key", ctypes.c_char_p, index).decode("utf-8", "replace")
            value = self._value(key) if key.startswith(prefix) else None
            if isinstance(value, float) and (
                math.isnan(value) or (key.endswith("epsilon") and value < 0)
            ):
                raise TracekitError(f"{self.path}: {key} is {value}, which cannot be.")

    def facts(self) -> dict[str, int | str]:
        arch = self._value("general.architecture")
        if not isinstance(arch, str):
            raise TracekitError(f"{self.path} does not name its architecture: it is no model.")
        name = self._value("general.name")
        groups = max(1, self._number(f"{arch}.expert_group_count"))
        return {
            "arch": arch,
            "name": name if isinstance(name, str) and name else self.path.stem,
            "n_layer": self._number(f"{arch}.block_count"),
            "n_nextn": self._number(f"{arch}.nextn_predict_layers"),
            "n_expert": self._number(f"{arch}.expert_count"),
            "top_k": self._number(f"{arch}.expert_used_count"),
            "n_embd": self._number(f"{arch}.embedding_length"),
            "n_ctx_train": self._number(f"{arch}.context_length"),
            "n_group": groups,
            "n_group_used": self._number(f"{arch}.expert_group_used_count") if groups > 1 else 1,
        }

    def tensors(self, file: int) -> dict[str, StoredTensor]:
        file_bytes = self.path.stat().st_size
        base = self._ask("gguf_get_data_offset", ctypes.c_size_t)
        found = {}
        for index in range(self._ask("gguf_get_n_tensors", ctypes.c_int64)):
            name = self._ask("gguf_get_tensor_name", ctypes.c_char_p, index).decode(
                "utf-8", "backslashreplace"
            )
            start = base + self._ask("gguf_get_tensor_offset", ctypes.c_size_t, index)
            stop = start + self._ask("gguf_get_tensor_size", ctypes.c_size_t, index)
            kind = self._ask("gguf_get_tensor_type", ctypes.c_int, index)
            sizes = self._ask("gguf_get_tensor_ne", ctypes.POINTER(ctypes.c_int64), index)
            shape = tuple(sizes[:4])
            least = 3 if _EXPERTS.fullmatch(name) else 1  # one expert is a stack of one
            while len(shape) > least and shape[-1] == 1:
                shape = shape[:-1]
            if stop > file_bytes:
                raise TracekitError(
                    f"{self.path} is cut short: {name} ends at byte {stop:,}, "
                    f"the file at {file_bytes:,}; download it again."
                )
            found[name] = StoredTensor(name, kind, shape, file, start, stop)
        return found
