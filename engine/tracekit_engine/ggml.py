"""A ggml tensor seen from Python: its layout in memory, checked, and its data as numpy arrays.

Addresses of llama.cpp's tensors go in; names, operations, operands and arrays come out. Nothing here
knows what a tensor means to a model.
"""

import ctypes
import math
from functools import cache

import numpy as np

from tracekit.trace.errors import TracekitError
from tracekit_engine import binding

_DTYPES: dict[int, type[np.number]] = {  # by ggml's number of the type
    0: np.float32,
    1: np.float16,
    26: np.int32,
}


class Tensor(ctypes.Structure):
    """``struct ggml_tensor`` as llama.cpp at llama-cpp-python 0.3.36 lays it out."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("src", ctypes.c_void_p * 10),
        ("view_src", ctypes.c_void_p),
        ("view_offs", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
        ("name", ctypes.c_char * 64),
        ("extra", ctypes.c_void_p),
    )

    @property
    def address(self) -> int:
        """The structure's address: what llama.cpp calls the tensor's pointer."""
        return ctypes.addressof(self)

    @property
    def name_bytes(self) -> bytes:
        """The tensor's name as llama.cpp stores it."""
        name: bytes = self.name
        return name

    @property
    def name_text(self) -> str:
        """The tensor's name as text."""
        return self.name_bytes.decode("utf-8", "replace")

    @property
    def op_name(self) -> str:
        """The operation that computes the tensor: ``"MUL_MAT"``; ``"NONE"`` for a weight or input."""
        return _op_name(self.op)

    @property
    def unary_name(self) -> str:
        """The function of a ``UNARY`` operation: ``"SIGMOID"``."""
        return _unary_name(self.op_params[0])

    def source(self, index: int) -> "Tensor":
        """Return operand `index` of the operation.

        Raises
        ------
        TracekitError
            The operation has no such operand.
        """
        pointer = self.src[index]
        if not pointer:
            raise TracekitError(f"{self.name_text} ({self.op_name}) has no operand {index}")
        return Tensor.from_address(pointer)

    def sources(self) -> "list[Tensor]":
        """Return all operands."""
        return [Tensor.from_address(pointer) for pointer in self.src if pointer]

    def float_param(self, index: int) -> float:
        """Return parameter `index` of the operation, which must be a float."""
        return ctypes.c_float.from_buffer(self.op_params, 4 * index).value

    def array(self) -> np.ndarray:
        """Return a copy of a float or int32 tensor's data, [ne3, ne2, ne1, ne0]; any strides."""
        return self._view().copy()

    def rows(self) -> np.ndarray:
        """Return a view of the data as [tokens, ne0]; copy it before llama.cpp goes on."""
        return self._view().reshape(-1, self.ne[0])

    def _view(self) -> np.ndarray:
        if self.type not in _DTYPES:
            raise TracekitError(
                f"The tensor {self.name_text} has type {self.type}, not a plain number."
            )
        dtype = np.dtype(_DTYPES[self.type])
        shape, strides = self.ne[::-1], self.nb[::-1]
        if 0 in shape:
            return np.empty(shape, dtype)
        extent = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        data = (ctypes.c_char * (extent + dtype.itemsize)).from_address(self.data)
        return np.ndarray(shape, dtype, data, strides=strides)

    def dequantised(self) -> np.ndarray:
        """Return a copy of a two-dimensional weight's data as float32 [ne1, ne0]."""
        if self.type in _DTYPES:
            return self.array().reshape(self.ne[1], self.ne[0]).astype(np.float32)
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        size = self.ne[1] * self.nb[1]
        raw = np.frombuffer((ctypes.c_uint8 * size).from_address(self.data), np.uint8)
        rows = dequantize(raw.reshape(self.ne[1], -1), GGMLQuantizationType(self.type))
        return rows.astype(np.float32).reshape(self.ne[1], self.ne[0])


NAME_OFFSET = Tensor.name.offset


@cache
def _op_name(op: int) -> str:
    name: bytes = binding.function("ggml_op_name", ctypes.c_char_p, ctypes.c_int)(op)
    return name.decode()


@cache
def _unary_name(op: int) -> str:
    name: bytes = binding.function("ggml_unary_op_name", ctypes.c_char_p, ctypes.c_int)(op)
    return name.decode()


def check_layout(tensor: Tensor) -> None:
    """Compare what `Tensor` reads with what llama.cpp's own accessors say of the same tensor.

    Raises
    ------
    TracekitError
        They disagree: this release of llama.cpp has another layout of a tensor.
    """
    pointer = ctypes.c_void_p
    name = binding.function("ggml_get_name", ctypes.c_char_p, pointer)(tensor.address)
    data = binding.function("ggml_get_data", pointer, pointer)(tensor.address)
    elements = binding.function("ggml_nelements", ctypes.c_int64, pointer)(tensor.address)
    agree = name == tensor.name and data == tensor.data and elements == math.prod(tensor.ne)
    # As names and places agree, `type` is a type. Only then may llama.cpp be asked for its size.
    if not agree or _n_bytes(tensor) != _true_n_bytes(tensor):
        raise TracekitError(
            "The installed llama-cpp-python lays its tensors out differently from the release "
            "that tracekit reads; install that one: pip install 'tracekit[engine]'"
        )


def _n_bytes(tensor: Tensor) -> int:
    if 0 in tensor.ne[:]:
        return 0
    block: int = binding.function("ggml_blck_size", ctypes.c_int64, ctypes.c_int)(tensor.type)
    block_bytes: int = binding.function("ggml_type_size", ctypes.c_size_t, ctypes.c_int)(
        tensor.type
    )
    counts: list[int] = list(tensor.ne)
    strides: list[int] = list(tensor.nb)
    if block > 1:
        first_row = counts[0] * strides[0] // block
    else:
        first_row = block_bytes + (counts[0] - 1) * strides[0]
    return first_row + sum((counts[i] - 1) * strides[i] for i in (1, 2, 3))


def _true_n_bytes(tensor: Tensor) -> int:
    n_bytes = binding.function("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
    return int(n_bytes(tensor.address))
