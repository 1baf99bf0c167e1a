"""TensorRT-LLM's statistic of expert use: a folder with a file for each rank.

In: the folder, or files of it. Out: the counts, summed over iterations and ranks.
"""

import json
import re

import numpy as np

from tracekit.formats.archives import opened
from tracekit.formats.base import read_bytes
from tracekit.formats.counts.expert_counts import MOST, MOST_EXPERTS, MOST_LAYERS, ExpertCounts
from tracekit.formats.counts.format import CountsFormat, register
from tracekit.formats.given import File, Given
from tracekit.model_files.safetensors import Safetensors
from tracekit.trace.errors import TraceError

_KEY = re.compile(r"(\d{1,12})_(\d{1,5})")
# The first tensor of a header, after what the file may carry beside tensors.
_FIRST_KEY = re.compile(
    rb'.{8}\{\s*(?:"__metadata__"\s*:\s*\{[^{}]*\}\s*,\s*)?"\d{1,12}_\d{1,5}"', re.S
)
_META = (b'"num_experts"', b'"num_experts_per_token"')
_MOST_META_BYTES = 1 << 20


@register
class TensorRtLlm(CountsFormat):
    """Reader of a folder of ``rank*.safetensors`` and ``meta_info.json``."""

    name = "tensorrt-llm"
    summary = "TensorRT-LLM's counts of expert use: `meta_info.json` and `rank*.safetensors`"
    told_by = "safetensors whose tensors are called `ITERATION_LAYER`"

    def recognises(self, given: Given) -> bool:
        """Say whether all files are ranks, but for one with the model's numbers."""
        ranks = [file for file in given.files if _is_rank(file)]
        others = [file for file in given.files if file not in ranks]
        return bool(ranks) and len(others) <= 1 and all(map(_is_meta, others))

    def read(self, given: Given) -> ExpertCounts:
        """Read the counts."""
        by_layer: dict[int, np.ndarray] = {}
        for file in given.files:
            if _is_rank(file):
                _add(file, by_layer)
        n_expert, top_k = None, None
        for file in given.files:
            if not _is_rank(file):
                n_expert, top_k = _numbers(file)
        layers = sorted(by_layer)
        counts = np.stack([by_layer[layer] for layer in layers])
        if n_expert is not None and n_expert != counts.shape[1]:
            raise TraceError(
                f"{given.name} counts {counts.shape[1]} experts, and its meta_info.json says "
                f"{n_expert}; copy all files of one run."
            )
        totals = counts.sum(axis=1)
        is_even = top_k and (totals == totals[0]).all() and totals[0] % top_k == 0
        return ExpertCounts.of_all_layers(
            counts,
            given.name,
            self.name,
            layers,
            top_k=top_k,
            n_tokens=int(totals[0]) // top_k if top_k and is_even else None,
        )


def _is_rank(file: File) -> bool:
    return _FIRST_KEY.match(file.head) is not None


def _is_meta(file: File) -> bool:
    return file.head.lstrip().startswith(b"{") and all(word in file.head for word in _META)


def _add(file: File, by_layer: dict[int, np.ndarray]) -> None:
    """Add the counts of a rank's file, all iterations."""
    with opened(file.path) as data:
        header = Safetensors(data, data.seek(0, 2), str(file.path))
        for name, tensor in header.tensors.items():
            match = _KEY.fullmatch(name)
            is_list = len(tensor.shape) == 1 and 0 < tensor.shape[0] <= MOST_EXPERTS
            if match is None or tensor.dtype not in ("I64", "I32") or not is_list:
                raise TraceError(
                    f"{file.path}: {name:.60} is no list of counts called ITERATION_LAYER; copy the "
                    "file again."
                )
            values = header.values(tensor)
            assert values is not None, "whole numbers are decoded"
            layer = int(match[2])
            total = by_layer.setdefault(layer, np.zeros(tensor.shape, np.int64))
            if (
                layer >= MOST_LAYERS
                or total.shape != tensor.shape
                or len(total) != len(next(iter(by_layer.values())))
            ):
                raise TraceError(
                    f"{file.path}: {name} counts {tensor.shape[0]} experts, and others another number; "
                    "copy the file again."
                )
            if values.min() < 0 or values.max() > MOST or total.max() > MOST:
                raise TraceError(
                    f"{file.path}: {name} holds {values.min()} to {values.max()}, which are no counts; "
                    "copy the file again."
                )
            total += values


def _numbers(file: File) -> tuple[int, int]:
    """Return experts, and experts a token."""
    try:
        meta = json.loads(read_bytes(file.path, _MOST_META_BYTES))
        numbers = meta["num_experts"], meta["num_experts_per_token"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(f"{file.path} gives no numbers of experts; copy it again.") from error
    if not all(type(n) is int and 0 < n <= MOST_EXPERTS for n in numbers):
        raise TraceError(f"{file.path} says {numbers!r:.60} experts; correct it.")
    return numbers
