"""The types of ggml's tensors: how many bytes a tensor has, and its values where that is simple.

In: ggml's number of a type, a shape, bytes. Out: sizes and float32 arrays.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np


class Kind(NamedTuple):
    """A type: values come in blocks of `block`, each of `block_bytes`."""

    name: str
    block: int
    block_bytes: int


KINDS = {
    0: Kind("F32", 1, 4),
    1: Kind("F16", 1, 2),
    2: Kind("Q4_0", 32, 18),
    3: Kind("Q4_1", 32, 20),
    6: Kind("Q5_0", 32, 22),
    7: Kind("Q5_1", 32, 24),
    8: Kind("Q8_0", 32, 34),
    9: Kind("Q8_1", 32, 40),
    10: Kind("Q2_K", 256, 84),
    11: Kind("Q3_K", 256, 110),
    12: Kind("Q4_K", 256, 144),
    13: Kind("Q5_K", 256, 176),
    14: Kind("Q6_K", 256, 210),
    15: Kind("Q8_K", 256, 292),
    16: Kind("IQ2_XXS", 256, 66),
    17: Kind("IQ2_XS", 256, 74),
    18: Kind("IQ3_XXS", 256, 98),
    19: Kind("IQ1_S", 256, 50),
    20: Kind("IQ4_NL", 32, 18),
    21: Kind("IQ3_S", 256, 110),
    22: Kind("IQ2_S", 256, 82),
    23: Kind("IQ4_XS", 256, 136),
    24: Kind("I8", 1, 1),
    25: Kind("I16", 1, 2),
    26: Kind("I32", 1, 4),
    27: Kind("I64", 1, 8),
    28: Kind("F64", 1, 8),
    29: Kind("IQ1_M", 256, 56),
    30: Kind("BF16", 1, 2),
    34: Kind("TQ1_0", 256, 54),
    35: Kind("TQ2_0", 256, 66),
    39: Kind("MXFP4", 32, 17),
    40: Kind("NVFP4", 64, 36),
    41: Kind("Q1_0", 128, 18),
}
# Those whose values are read here.
DECODED = ("F32", "F16", "BF16", "Q8_0")


def n_bytes(kind: Kind, shape: Sequence[int]) -> int:
    """Return the bytes of a tensor whose rows have ``shape[-1]`` values.

    Raises
    ------
    ValueError
        The rows are no whole number of blocks.
    """
    if shape[-1] % kind.block:
        raise ValueError(f"rows of {shape[-1]} values are no whole blocks of {kind.name}")
    return prod(shape) // kind.block * kind.block_bytes


def values(kind: Kind, data: bytes) -> np.ndarray | None:
    """Return the values of a tensor as float32; None of a type that is not decoded here."""
    return decoded(kind, data) if kind.name in DECODED else None


def decoded(kind: Kind, data: bytes) -> np.ndarray:
    """Return the values of a tensor of a type in `DECODED` as float32."""
    if kind.name == "F32":
        return np.frombuffer(data, "<f4").astype(np.float32)
    if kind.name == "F16":
        return np.frombuffer(data, "<f2").astype(np.float32)
    if kind.name == "BF16":
        return of_bf16(data)
    blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("values", "i1", 32)]))
    scaled: np.ndarray = blocks["values"] * blocks["scale"].astype(np.float32)[:, None]
    return scaled.reshape(-1).astype(np.float32)


def of_bf16(data: bytes) -> np.ndarray:
    """Return bfloat16 values as float32: they are its upper halves."""
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
