"""SGLang's expert distribution recorder in its modes ``stat`` and ``per_pass``.

In: files of ``/dump_expert_distribution_record``. Out: their counts. `per_pass` counts physical experts,
copies of hot experts apart; the file's map makes them the model's own.
"""

from typing import Any

import numpy as np

from tracekit.formats.counts.expert_counts import MOST, MOST_EXPERTS, MOST_LAYERS, ExpertCounts
from tracekit.formats.counts.format import CountsFormat, register
from tracekit.formats.given import File, Given
from tracekit.formats.torch_files import Read, Tensor, TorchFile
from tracekit.trace.errors import TraceError

STAT, RECORDS, OF_PASS = "logical_count", "records", "global_physical_count"
MAP, PASS, OF_TOKEN = "last_physical_to_logical_map", "forward_pass_id", "topk_ids_of_layer"


@register
class SglangCounts(CountsFormat):
    """Reader of SGLang's expert distribution records that count tokens together."""

    name = "sglang-counts"
    summary = "expert_distribution_recorder_*.pt of an SGLang server in its modes stat and per_pass"
    told_by = f"a file of torch.save with {STAT}, or with {RECORDS} that have {OF_PASS}"

    def recognises(self, given: Given) -> bool:
        """Say whether every file holds counts."""
        return bool(given.files) and all(_is_stat(f) or _is_per_pass(f) for f in given.files)

    def read(self, given: Given) -> ExpertCounts:
        """Read the counts: files of `stat` are added, and a pass that all ranks report counts once."""
        tables: list[np.ndarray] = []
        passes: set[int] = set()
        for file in given.files:
            torch = file.torch
            if torch is None:
                raise TraceError(f"{file.path} is no file of torch.save; copy it again.")
            with torch.reading() as read:
                tables.append(
                    _stat(torch, read) if _is_stat(file) else _per_pass(torch, read, passes)
                )
        if len({table.shape for table in tables}) > 1:
            raise TraceError(f"{given.name} are of different models; name files of one run.")
        return ExpertCounts.of_all_layers(np.sum(tables, axis=0), given.name, self.name)


def _value(file: File) -> dict[str, Any]:
    """Return the dict that a file of torch.save holds; of another file an empty one."""
    value = None if file.torch is None else file.torch.value
    return value if isinstance(value, dict) else {}


def _is_stat(file: File) -> bool:
    return isinstance(_value(file).get(STAT), Tensor)


def _is_per_pass(file: File) -> bool:
    records = _value(file).get(RECORDS)
    first = records[0] if isinstance(records, list) and records else None
    return isinstance(first, dict) and OF_PASS in first and OF_TOKEN not in first


def _checked(file: TorchFile, name: str, tensor: object, axes: int) -> Tensor:
    """Refuse what is no tensor of whole numbers with so many axes, the last two layers and experts."""
    sound = isinstance(tensor, Tensor) and tensor.is_integer and len(tensor.shape) == axes
    if sound and isinstance(tensor, Tensor):
        *_, n_layers, n_experts = tensor.shape
        if 0 < n_layers <= MOST_LAYERS and 0 < n_experts <= MOST_EXPERTS:
            return tensor
    raise TraceError(
        f"{file.path}: {name} is no table of whole numbers for each layer and expert; record it again."
    )


def _counts(file: TorchFile, name: str, tensor: Tensor, read: Read) -> np.ndarray:
    values = read(tensor)
    if values.size and (values.min() < 0 or values.max() > MOST):
        raise TraceError(
            f"{file.path}: {name} holds {values.min()} to {values.max()}, which are no counts; record "
            "it again."
        )
    return values


def _stat(file: TorchFile, read: Read) -> np.ndarray:
    """Return the sum over steps of [steps, layers, experts]."""
    tensor = _checked(file, STAT, file.value[STAT], 3)
    table: np.ndarray = _counts(file, STAT, tensor, read).sum(axis=0, dtype=np.int64)
    return table


def _per_pass(file: TorchFile, read: Read, passes: set[int]) -> np.ndarray:
    """Return the sum over the records of passes that are not among `passes`, which are added there."""
    to_logical = read(_checked(file, MAP, file.value.get(MAP), 2))
    if to_logical.min() < 0 or to_logical.max() >= MOST_EXPERTS:
        raise TraceError(f"{file.path}: {MAP} names experts that no model has; record it again.")
    physical = np.zeros(to_logical.shape, np.int64)
    for number, record in enumerate(file.value[RECORDS]):
        name = f"{OF_PASS} of record {number}"
        given = record if isinstance(record, dict) else {}
        tensor = _checked(file, name, given.get(OF_PASS), 2)
        if tensor.shape != physical.shape:
            raise TraceError(
                f"{file.path}: {name} has the shape {tensor.shape}, and {MAP} {physical.shape}; record "
                "it again."
            )
        found = given.get(PASS)
        if type(found) is not int:
            raise TraceError(f"{file.path}: record {number} has no {PASS}; record it again.")
        if found not in passes:
            passes.add(found)
            physical += _counts(file, name, tensor, read)
            if physical.max() > MOST:
                raise TraceError(f"{file.path}: {name} is no count; record it again.")
    logical = np.zeros((len(physical), int(to_logical.max()) + 1), np.int64)
    layers = np.broadcast_to(np.arange(len(physical))[:, None], physical.shape)
    np.add.at(logical, (layers, to_logical), physical)
    return logical
