"""A model's GGUF files: what they say of the model, and where each tensor's bytes are.

A path goes in; facts and places come out. The model is not loaded.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from tracekit.trace.build import on_one_line
from tracekit.trace.errors import TracekitError
from tracekit_engine import header_numbers
from tracekit_engine.ggml import type_name
from tracekit_engine.gguf_header import EXPERT_WEIGHT, Header, Metadata, StoredTensor

_LAYER = re.compile(r"blk\.(\d+)\.")
_SINGLE_EXPERT = re.compile(r"blk\.\d+\.ffn_(gate|up|down)\.\d+\.weight")
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class _Rule(NamedTuple):
    """What must hold in any architecture: a key, its value, whether it holds, and why not."""

    key: str
    value: int | str
    holds: bool
    reason: str


@dataclass(frozen=True)
class ModelFile(Metadata):
    """What the files of a model say: the metadata of the first file, the tensors of all.

    Attributes
    ----------
    paths : tuple of Path
        The file, or the files of a split model in order.
    tensors : dict of str to StoredTensor
    """

    paths: tuple[Path, ...]
    tensors: dict[str, StoredTensor]

    @classmethod
    def open(cls, path: str | Path) -> "ModelFile":
        """Read the headers of the model at `path`.

        Raises
        ------
        TracekitError
            The file is missing, is no GGUF file, is cut short, or holds a dense model. Or it is a
            part of a split model, and it is not the first part or others are missing. Or its
            experts are not stored as one tensor a layer. Or it contradicts itself about its experts
            or layers, or gives layers another number of experts per token than others.
        """
        paths = _all_files(Path(path))
        tensors: dict[str, StoredTensor] = {}
        with Header.opened(paths[0]) as header:
            tensors.update(header.tensors(0))
            _check_part(header, 1, len(paths))
            metadata = header.metadata()
            header_numbers.check(paths[0], header.numbers(f"{metadata.arch}."))
        for index, later in enumerate(paths[1:], start=1):
            with Header.opened(later) as header:
                tensors.update(header.tensors(index))
                _check_part(header, index + 1, len(paths))
        model = cls(**asdict(metadata), paths=paths, tensors=tensors)
        if not model.n_expert and not any(map(EXPERT_WEIGHT.fullmatch, tensors)):
            raise TracekitError(
                f"{path} is a dense model ({on_one_line(model.arch)}): it has no experts to record."
            )
        single = next(filter(_SINGLE_EXPERT.fullmatch, tensors), None)
        if single is not None:
            raise TracekitError(
                f"{path} holds each expert as a tensor of its own ({single}), as GGUF files from "
                "before April 2024 do; download a newer file of the model, or convert it again."
            )
        for rule in model._rules():
            if not rule.holds:
                value = rule.value or "0 or missing"
                raise TracekitError(
                    f"{path}: {on_one_line(model.arch)}.{rule.key} is {value}, but {rule.reason}."
                )
        return model

    def _rules(self) -> Iterator[_Rule]:
        """Give the rules; llama.cpp aborts instead of complaining if most of them do not hold."""
        layers = {int(match[1]) for match in map(_LAYER.match, self.tensors) if match}
        n_stored = max(layers, default=-1) + 1
        stacks = {t.shape[-1] for t in self.tensors.values() if EXPERT_WEIGHT.fullmatch(t.name)}
        n, groups = self.n_expert, self.n_group
        numbers = " or ".join(map(str, sorted(stacks))) or "no"
        yield _Rule(
            "block_count",
            self.n_layer,
            0 < self.n_layer - self.n_nextn <= n_stored,
            f"the file holds {n_stored} layers, and nextn_predict_layers is {self.n_nextn}",
        )
        yield _Rule(
            "expert_count", n, n > 0 and n in stacks, f"its weights are of {numbers} experts"
        )
        yield _Rule(
            "expert_used_count", self.top_k, 0 < self.top_k <= n, f"the model has {n} experts"
        )
        yield _Rule(
            "expert_group_count",
            groups,
            groups == 1 or (groups < n and n % groups == 0),
            f"{n} experts cannot form so many equal groups of two or more",
        )
        yield _Rule(
            "expert_group_used_count",
            self.n_group_used,
            groups == 1 or 0 < self.n_group_used < groups,
            f"with {groups} groups it must be from 1 to {groups - 1}",
        )
        by_layer = enumerate(self.top_k_by_layer)
        counts = {count for layer, count in by_layer if layer in self.expert_tensors}
        yield _Rule(
            "expert_used_count",
            f"{' or '.join(map(str, sorted(counts)))}, depending on the layer",
            len(counts) <= 1,
            "a trace has one number for all layers; make a copy of the file that gives one number",
        )

    @cached_property
    def expert_tensors(self) -> dict[int, list[StoredTensor]]:
        """Stacked expert weights by layer; they are recognised by their names."""
        found: dict[int, list[StoredTensor]] = {}
        for tensor in self.tensors.values():
            match = EXPERT_WEIGHT.fullmatch(tensor.name)
            if match and tensor.shape[-1] == self.n_expert:
                found.setdefault(int(match[1]), []).append(tensor)
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
        """Bytes of a layer's other weights, by layer; key -1 is for weights that have no layer."""
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
        return type_name(max(sizes, key=sizes.__getitem__))

    @property
    def needed_bytes(self) -> list[int]:
        """How much of each file is read: up to the end of its last tensor."""
        needed = [0] * len(self.paths)
        for tensor in self.tensors.values():
            needed[tensor.file] = max(needed[tensor.file], tensor.stop)
        return needed

    @property
    def file_bytes(self) -> int:
        """Size of all files."""
        return sum(path.stat().st_size for path in self.paths)


def _check_part(header: Header, number: int, count: int) -> None:
    """Refuse a file that is another part of a split model than its name says: `number` of `count`."""
    is_part, of = header.part()
    if (is_part, of) == (number, count) or of == 1:
        return
    named = f"part {number} of {count}" if count > 1 else "a whole model"
    raise TracekitError(
        f"{header.path} is named as {named}, but it holds part {is_part} of {of}; give it a name that "
        f"ends in -{is_part:05}-of-{of:05}.gguf, as the other parts have, and name the first part."
    )


def _all_files(path: Path) -> tuple[Path, ...]:
    """Return the files of the model that `path` names, from their names alone."""
    split = _SPLIT.fullmatch(path.name)
    if not split:
        return (path,)
    stem, number, count = split[1], int(split[2]), int(split[3])
    if not 1 <= number <= count:
        raise TracekitError(
            f"{path} is named as part {number} of {count}, which is not a part's number."
        )
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
