"""A ggml tensor seen from Python: its layout in memory, checked, and its data as numpy arrays."""

import ctypes
import math
from functools import cache

import numpy as np

from tracekit.trace.errors import TracekitError
from tracekit_engine import binding

_DTYPES = {0: np.float32, 1: np.float16, 26: np.int32}  # by ggml's numbers of types


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
        """Where the structure stands: what llama.cpp calls the tensor's pointer."""
        return ctypes.addressof(self)

    @property
    def text(self) -> str:
        """The tensor's name."""
        return self.name.decode("utf-8", "replace")

    @property
    def op_name(self) -> str:
        """The operation that makes the tensor: ``"MUL_MAT"``; ``"NONE"`` of a weight or input."""
        return _op_name(self.op)

    @property
    def unary_name(self) -> str:
        """The function of a ``UNARY`` operation: ``"SIGMOID"``."""
        return _unary_name(self.op_params[0])

    def source(self, index: int) -> "Tensor | None":
        """Return operand `index` of the operation."""
        pointer = self.src[index]
        return Tensor.from_address(pointer) if pointer else None

    def sources(self) -> "list[Tensor]":
        """Return all operands."""
        return [Tensor.from_address(pointer) for pointer in self.src if pointer]

    def float_param(self, index: int) -> float:
        """Return parameter `index` of the operation, where it is a float."""
        return ctypes.c_float.from_buffer(self.op_params, 4 * index).value

    def array(self) -> np.ndarray:
        """Copy the data of a float or int32 tensor: shape [ne3, ne2, ne1, ne0], any strides."""
        return self._view().copy()

    def rows(self) -> np.ndarray:
        """Return the data as [tokens, ne0], to be copied before llama.cpp goes on."""
        return self._view().reshape(-1, self.ne[0])

    def _view(self) -> np.ndarray:
        if self.type not in _DTYPES:
            raise TracekitError(f"The tensor {self.text} has type {self.type}, not a plain number.")
        dtype = np.dtype(_DTYPES[self.type])
        shape, strides = self.ne[::-1], self.nb[::-1]
        if 0 in shape:
            return np.empty(shape, dtype)
        extent = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
        data = (ctypes.c_char * (extent + dtype.itemsize)).from_address(self.data)
        return np.ndarray(shape, dtype, data, strides=strides)

    def dequantised(self) -> np.ndarray:
        """Copy the data of a two-dimensional weight as float32 [ne1, ne0]."""
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
    return binding.function("ggml_op_name", ctypes.c_char_p, ctypes.c_int)(op).decode()


@cache
def _unary_name(op: int) -> str:
    return binding.function("ggml_unary_op_name", ctypes.c_char_p, ctypes.c_int)(op).decode()


def check_layout(tensor: Tensor) -> None:
    """Compare what `Tensor` reads with what llama.cpp's own accessors say of the same tensor.

    Raises
    ------
    TracekitError
        They disagree: this release of llama.cpp lays its tensors out in another way.
    """
    pointer = ctypes.c_void_p
    name = binding.function("ggml_get_name", ctypes.c_char_p, pointer)(tensor.address)
    data = binding.function("ggml_get_data", pointer, pointer)(tensor.address)
    elements = binding.function("ggml_nelements", ctypes.c_int64, pointer)(tensor.address)
    agree = name == tensor.name and data == tensor.data and elements == math.prod(tensor.ne)
    # Names and places agree, so the type is one: its size may be asked for.
    if not agree or _n_bytes(tensor) != _true_n_bytes(tensor):
        raise TracekitError(
            "The installed llama-cpp-python lays its tensors out differently from the release "
            "that tracekit reads; install that one: pip install 'tracekit[engine]'"
        )


def _n_bytes(tensor: Tensor) -> int:
    if 0 in tensor.ne[:]:
        return 0
    block = binding.function("ggml_blck_size", ctypes.c_int64, ctypes.c_int)(tensor.type)
    block_bytes = binding.function("ggml_type_size", ctypes.c_size_t, ctypes.c_int)(tensor.type)
    if block > 1:
        first_row = tensor.ne[0] * tensor.nb[0] // block
    else:
        first_row = block_bytes + (tensor.ne[0] - 1) * tensor.nb[0]
    return first_row + sum((tensor.ne[i] - 1) * tensor.nb[i] for i in (1, 2, 3))


def _true_n_bytes(tensor: Tensor) -> int:
    n_bytes = binding.function("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
    return n_bytes(tensor.address)
