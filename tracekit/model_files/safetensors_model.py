"""What the safetensors files of a model say of its experts and its routers.

In: a file, the first of several parts, or a folder. Out: `ModelSizes`. A ``config.json`` beside the
files gives what tensors cannot say. Of the weights, only routers, their biases and the norms before
them are read.
"""

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.model_files.config import Config, known_top_k
from tracekit.model_files.families import NORMS
from tracekit.model_files.layers import Experts, checked
from tracekit.model_files.paths import parts_of
from tracekit.model_files.safetensors import Safetensors, Stored
from tracekit.model_files.sizes import ModelSizes
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts

ENDING = ".safetensors"
INDEX = "model.safetensors.index.json"
_MOST_FILES = 10_000
_MOST_INDEX_BYTES = 256 << 20
# The stack of layers, the number of one, and the rest of the name; ``mtp`` predicts tokens further on.
_LAYER = re.compile(r"((?!mtp\.)(?:[\w.]*\.)?layers)\.(\d{1,5})\.(.+)")
_ONE_EACH = re.compile(r"(?:\w+\.)?experts\.(\d{1,5})\..+")
_FUSED = re.compile(
    r"(?:\w+\.)?experts\.(?:[a-z]\w*\.)?(?:gate_up_proj|gate_proj|up_proj|down_proj|w1|w2|w3|v1)"
    r"(?:[._]\w+)*|(?:mlp|block_sparse_moe|moe|feed_forward)\.(?:input|output)_linear\.weight"
)
_BLOCK = r"(?:mlp|block_sparse_moe|feed_forward|ffn|moe|mixer)"
_ROUTER = re.compile(rf"{_BLOCK}\.(?:gate|router)(?:\.(?:layer|classifier|wg))?\.weight")
_ROUTER_BIAS = re.compile(rf"{_BLOCK}\.(?:gate|router)(?:\.(?:layer|classifier|wg))?\.bias")
_SELECTION_BIAS = re.compile(
    rf"{_BLOCK}\.(?:(?:gate|router|moe_statics)\.)?(?:e_score_correction_bias|expert_bias)"
)


def read_file(path: Path, top_k: int | None = None) -> ModelSizes:
    """Return what a safetensors file says, or all parts of which it is the first.

    Raises
    ------
    TraceError
        A file is missing or damaged, holds no experts, or contradicts the ``config.json``.
    """
    return _read(path, parts_of(path, ENDING), path.parent, top_k)


def read_folder(folder: Path, top_k: int | None = None) -> ModelSizes:
    """Return what the safetensors files of a folder say; errors are those of `read_file`."""
    index = folder / INDEX
    if index.is_file():
        paths = _of_index(index)
    elif (folder / f"model{ENDING}").is_file():
        paths = [folder / f"model{ENDING}"]
    else:
        paths = sorted(each for each in folder.glob(f"*{ENDING}") if each.is_file())
    if not paths:
        if (folder / "config.json").is_file():
            raise TraceError(
                f"{folder} holds no safetensors file; name {folder / 'config.json'} for an estimate "
                "of the sizes."
            )
        raise TraceError(
            f"{folder} holds no safetensors file; name a model's folder, or its GGUF file."
        )
    return _read(folder, paths[:_MOST_FILES], folder, top_k)


def _of_index(index: Path) -> list[Path]:
    """Return the files that an index names, all of them beside it."""
    if index.stat().st_size > _MOST_INDEX_BYTES:
        raise TraceError(f"{index} is too large to be an index; copy it again.")
    try:
        weight_map = json.loads(index.read_bytes())["weight_map"]
        names = sorted(set(weight_map.values()))
        is_sound = all(isinstance(name, str) and Path(name).name == name for name in names)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TraceError(f"{index} is no index of safetensors files; copy it again.") from error
    if not is_sound:
        raise TraceError(f"{index} names files outside of its folder; copy it again.")
    paths = [index.with_name(name) for name in names]
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        raise TraceError(f"{index} names {missing[0]:.80}, which is not beside it; download it.")
    return paths


def _read(named: Path, paths: list[Path], folder: Path, top_k: int | None) -> ModelSizes:
    beside = folder / "config.json"
    config = Config.of_file(beside) if beside.is_file() else Config({}, str(named))
    with ExitStack() as stack:
        files = []
        for each in paths:
            opened = stack.enter_context(each.open("rb"))
            files.append(Safetensors(opened, each.stat().st_size, str(each)))
        n_bytes = sum(each.stat().st_size for each in paths)
        return _Model(named, files, config).sizes(n_bytes, top_k, beside.is_file())


class _Model:
    def __init__(self, path: Path, files: list[Safetensors], config: Config):
        self.path, self.config = path, config
        # By the stack of layers, the layer, and the rest of the name.
        stacks: dict[str, dict[int, dict[str, tuple[Safetensors, Stored]]]] = {}
        seen: set[str] = set()
        for file in files:
            for name, tensor in file.tensors.items():
                if name in seen:
                    raise TraceError(
                        f"{path} holds {name:.80} in two files; name one set of files."
                    )
                seen.add(name)
                match = _LAYER.fullmatch(name)
                if match:
                    layer = stacks.setdefault(match[1], {}).setdefault(int(match[2]), {})
                    layer[match[3]] = file, tensor
        with_experts = [name for name, layers in stacks.items() if any(map(_has, layers.values()))]
        if not with_experts:
            raise TraceError(
                f"{path} holds no experts under a name that is known (…layers.N.mlp.experts…), so it "
                "is a dense model or of a family that is not known; give --expert-mib instead."
            )
        if len(with_experts) > 1:
            raise TraceError(
                f"{path} holds experts in {len(with_experts)} stacks of layers "
                f"({', '.join(with_experts)[:100]}), and a trace is of one; give --expert-mib instead."
            )
        self.layers = stacks[with_experts[0]]
        self.warnings = list(config.group_warnings)

    def sizes(self, file_bytes: int, top_k: int | None, has_config: bool) -> ModelSizes:
        said = self.config.n_layer
        n_layer = said or max(self.layers) + 1
        layers = {n: tensors for n, tensors in self.layers.items() if n < n_layer and _has(tensors)}
        n_expert = self.config.n_expert or max(map(_n_expert, layers.values()), default=0)
        beside = () if has_config else ("config.json",)
        k = known_top_k(top_k or self.config.top_k, str(self.path), beside)
        if not n_expert:
            raise TraceError(
                f"{self.path} holds no experts in its {n_layer} layers; copy it again."
            )
        facts = self.config.facts(n_expert, k, n_layer, file_bytes=file_bytes)
        experts = {n: _experts(tensors, n_expert) for n, tensors in layers.items()}
        rows = [self._row(n, facts) for n in sorted(layers)]
        return checked(self._wide(facts, rows), rows, experts, str(self.path), self.warnings)

    def _wide(self, facts: ModelFacts, rows: list[dict[str, Any]]) -> ModelFacts:
        """Return the facts, with the width that a router shows if no config says it."""
        widths = {row["router_matrix"].shape[1] for row in rows if "router_matrix" in row}
        if facts.n_embd is None and len(widths) == 1:
            return replace(facts, n_embd=widths.pop())
        return facts

    def _row(self, layer: int, facts: ModelFacts) -> dict[str, Any]:
        tensors = self.layers[layer]
        dense = sum(
            t.n_bytes
            for rest, (_, t) in tensors.items()
            if not _is_experts(rest, t, facts.n_expert)
        )
        row: dict[str, Any] = {"layer": layer, "dense_bytes": dense}
        n = facts.n_expert
        for name, pattern, shape in (
            ("router_matrix", _ROUTER, (n, facts.n_embd)),
            ("router_bias", _ROUTER_BIAS, (n,)),
            ("selection_bias", _SELECTION_BIAS, (n,)),
        ):
            for rest in tensors:
                if pattern.fullmatch(rest):
                    row[name] = self._array(layer, rest, shape)
        norm = NORMS.get(self.config.model_type)
        if norm in tensors:
            row["norm_weight"] = self._array(layer, norm, (facts.n_embd,))
        return {name: value for name, value in row.items() if value is not None}

    def _array(self, layer: int, rest: str, shape: tuple[int | None, ...]) -> "np.ndarray | None":
        """Return a small array of a layer as float32; None if it has another shape (None: any)."""
        file, tensor = self.layers[layer][rest]
        fits = len(tensor.shape) == len(shape) and all(
            wanted in (None, found) for wanted, found in zip(shape, tensor.shape, strict=True)
        )
        if not fits:
            return None
        values = file.values(tensor)
        if values is None:
            sentence = (
                f"{self.path} stores {rest:.80} as {tensor.dtype}, which is not decoded here; what "
                "needs it (stale-gate, ctrl) cannot run."
            )
            if sentence not in self.warnings:
                self.warnings.append(sentence)
            return None
        return values.astype(np.float32)


_Tensors = dict[str, tuple[Safetensors, Stored]]


def _has(tensors: _Tensors) -> bool:
    """Say whether a layer has experts."""
    return any(_ONE_EACH.fullmatch(rest) or _FUSED.fullmatch(rest) for rest in tensors)


def _n_expert(tensors: _Tensors) -> int:
    """Return how many experts the tensors of a layer show."""
    ids = [int(match[1]) for rest in tensors if (match := _ONE_EACH.fullmatch(rest))]
    stacks = [t.shape[0] for rest, (_, t) in tensors.items() if _FUSED.fullmatch(rest) and t.shape]
    return max([max(ids, default=-1) + 1, *stacks])


def _is_experts(rest: str, tensor: Stored, n_expert: int) -> bool:
    """Say whether a tensor holds weights of experts; scales of a whole tensor are of no expert."""
    if _ONE_EACH.fullmatch(rest):
        return True
    is_stack = bool(tensor.shape) and tensor.shape[0] > 0 and tensor.shape[0] % n_expert == 0
    return _FUSED.fullmatch(rest) is not None and is_stack


def _experts(tensors: _Tensors, n_expert: int) -> Experts:
    found = Experts()
    for rest, (_, tensor) in tensors.items():
        if match := _ONE_EACH.fullmatch(rest):
            found.add_one(int(match[1]), tensor.n_bytes, tensor.dtype)
        elif _is_experts(rest, tensor, n_expert):
            found.add_stack(n_expert, tensor.n_bytes, tensor.dtype)
        elif _FUSED.fullmatch(rest) and len(tensor.shape) > 1:
            found.add_stack(tensor.shape[0], tensor.n_bytes, tensor.dtype)
    return found
