"""One small valid sample of every format of counts, by its name; `test_counts_conformance` needs it.

All hold `TABLE`: three layers, the first without experts, of four experts each.
"""

from dataclasses import dataclass

import numpy as np
from format_samples import saved
from model_file_samples import f32, gguf, safetensors
from torch_writer import T, saved_by_torch

TABLE = np.array([[0, 0, 0, 0], [5, 1, 0, 4], [2, 3, 4, 1]])
N_TOKENS, TOP_K = 5, 2


@dataclass(frozen=True)
class CountsSample:
    """A file, or the files of a folder by name.

    `layers`: the layers that can be told; `is_text`: lines of text.
    """

    files: bytes | dict[str, bytes]
    layers: tuple[int, ...] = (1, 2)
    is_text: bool = False


def imatrix() -> bytes:
    tensors = {"blk.0.attn_q.weight.counts": f32(np.full((1, 1), N_TOKENS))}
    for layer in (1, 2):
        for name in ("gate", "up", "down"):
            key = f"blk.{layer}.ffn_{name}_exps.weight"
            tensors[f"{key}.in_sum2"] = f32(np.ones((4, 6)))
            tensors[f"{key}.counts"] = f32(TABLE[layer][:, None])
    return gguf({"general.type": "imatrix", "imatrix.datasets": ["calib.txt"]}, tensors)


def _lines(separator: str) -> str:
    rows = [(n, e, TABLE[n, e]) for n in (1, 2) for e in range(4) if TABLE[n, e]]
    return "".join(separator.join(map(str, row)) + "\n" for row in rows)


def _rank(scale: int) -> bytes:
    """Return a rank's counts in two iterations, which add up to `scale` halves of the table."""
    tensors = {}
    for layer in (1, 2):
        first = TABLE[layer] // 2
        for iteration, values in ((100, first), (101, TABLE[layer] * scale // 2 - first)):
            tensors[f"{iteration}_{layer}"] = np.ascontiguousarray(values, np.int64)
    return safetensors(tensors, {"format": "pt"})


def per_pass(rank: int) -> bytes:
    """Return a rank's records of two passes; expert 3 has a copy, which is physical expert 4."""
    to_logical = np.array([[0, 1, 2, 3, 3]] * 3)
    physical = np.concatenate([TABLE, np.zeros((3, 1), int)], axis=1)
    physical[:, 4] = TABLE[:, 3] // 2
    physical[:, 3] -= physical[:, 4]
    first = physical // 3
    records = [
        {"forward_pass_id": number, "rank": rank, "global_physical_count": T(counts)}
        for number, counts in ((7, first.astype(np.int32)), (8, physical - first))
    ]
    return saved_by_torch({"records": records, "last_physical_to_logical_map": T(to_logical)})


def stat() -> bytes:
    steps = np.stack([TABLE // 2, TABLE - TABLE // 2]).astype(np.int32)
    return saved_by_torch({"rank": 0, "logical_count": T(steps), "average": None})


COUNTS_SAMPLES: dict[str, CountsSample] = {
    "imatrix": CountsSample(imatrix()),
    "sglang-counts": CountsSample(stat()),
    "sglang-csv": CountsSample(("layer_id,expert_id,count\n" + _lines(",")).encode(), is_text=True),
    "tensorrt-llm": CountsSample(
        {
            "meta_info.json": b'{"num_experts": 4, "num_experts_per_token": 2}',
            "rank0.safetensors": _rank(2),
        }
    ),
    "coli-usage": CountsSample(("-1 3 4\n-2 1 77\n" + _lines(" ")).encode(), is_text=True),
    "eplb": CountsSample(saved(np.save, TABLE[1:].astype(np.float32)), layers=(0, 1)),
    "moe-infinity": CountsSample(saved(np.save, np.stack([TABLE, TABLE * 0.0]))),
}
