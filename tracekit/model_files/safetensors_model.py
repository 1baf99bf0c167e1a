"""What the safetensors files of a model say of its experts and its routers.

In: a file, the first of several parts, or a folder. Out: `ModelSizes`. A ``config.json`` beside the
files gives what tensors cannot say. Of the weights, only routers, their biases and the norms before
them are read.
"""

import json
import re
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.model_files.config import Config, known_top_k
from tracekit.model_files.embeddings import Embeddings
from tracekit.model_files.families import NORMS
from tracekit.model_files.layers import Experts, checked
from tracekit.model_files.paths import parts_of
from tracekit.model_files.safetensors import Safetensors, Stored, bytes_of, decoded
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
_EMBEDDINGS = re.compile(
    r"(?:[\w.]*\.)?(?:embed_tokens|wte|word_embeddings|tok_embeddings)\.weight"
)
_FLOATS = ("F16", "BF16", "F32", "F64")
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
        sizes = _Model(named, files, config).sizes(n_bytes, top_k, beside.is_file())
        of_paths = dict(zip(paths, files, strict=True))
        return replace(sizes, embeddings=_embeddings(of_paths, sizes.facts.n_embd))


def _embeddings(files: dict[Path, Safetensors], n_embd: int | None) -> Embeddings | None:
    """Return the only table of embeddings; None if there is none, or of a type not decoded here."""
    found = [
        (path, tensor)
        for path, file in files.items()
        for name, tensor in file.tensors.items()
        if _EMBEDDINGS.fullmatch(name) and len(tensor.shape) == 2 and tensor.shape[1] == n_embd
    ]
    if len(found) != 1 or found[0][1].dtype not in _FLOATS:
        return None
    ((path, tensor),) = found
    n_vocab, width = tensor.shape
    row_bytes = width * bytes_of(tensor.dtype)
    return Embeddings(path, tensor.start, n_vocab, width, row_bytes, partial(decoded, tensor.dtype))


class _Layer:
    """The tensors of a layer: experts that stand apart are summed up, the others are kept."""

    def __init__(self) -> None:
        self.single = Experts()
        self.others: dict[str, tuple[Safetensors, Stored]] = {}

    def add(self, rest: str, file: Safetensors, tensor: Stored) -> None:
        """Add a tensor by the rest of its name."""
        if match := _ONE_EACH.fullmatch(rest):
            self.single.add_one(int(match[1]), tensor.n_bytes, tensor.dtype)
        else:
            self.others[rest] = file, tensor

    @cached_property
    def stacks(self) -> dict[str, Stored]:
        """The tensors that hold weights of all experts."""
        return {
            rest: t for rest, (_, t) in self.others.items() if t.shape and _FUSED.fullmatch(rest)
        }

    def __bool__(self) -> bool:
        return bool(self.single or self.stacks)

    @property
    def n_expert(self) -> int:
        """Experts, as the tensors show them."""
        stacked = max((t.shape[0] for t in self.stacks.values()), default=0)
        return max(self.single.n_expert if self.single else 0, stacked)

    def experts(self, n_expert: int) -> Experts:
        """Return the experts; scales of a whole tensor are of none."""
        found = Experts(ids={**self.single.ids}, types={**self.single.types})
        for tensor in self.stacks.values():
            # One axis may hold all experts and the rows of each.
            is_whole = tensor.shape[0] > 0 and tensor.shape[0] % n_expert == 0
            if is_whole or len(tensor.shape) > 1:
                stacked = n_expert if is_whole else tensor.shape[0]
                found.add_stack(stacked, tensor.n_bytes, tensor.dtype)
        return found

    @property
    def dense_bytes(self) -> int:
        """Bytes of what is of no expert."""
        return sum(t.n_bytes for rest, (_, t) in self.others.items() if rest not in self.stacks)


class _Model:
    def __init__(self, path: Path, files: list[Safetensors], config: Config):
        self.path, self.config = path, config
        # By the stack of layers, then by the layer.
        stacks: dict[str, dict[int, _Layer]] = {}
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
                    layers = stacks.setdefault(match[1], {})
                    layers.setdefault(int(match[2]), _Layer()).add(match[3], file, tensor)
        with_experts = [name for name, layers in stacks.items() if any(layers.values())]
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
        n_layer = self.config.n_layer or max(self.layers) + 1
        layers = {n: layer for n, layer in self.layers.items() if n < n_layer and layer}
        shown = max((layer.n_expert for layer in layers.values()), default=0)
        n_expert = self.config.n_expert or shown
        beside = () if has_config else ("config.json",)
        k = known_top_k(top_k or self.config.top_k, str(self.path), beside)
        if not n_expert:
            raise TraceError(
                f"{self.path} holds no experts in its {n_layer} layers; copy it again."
            )
        facts = self.config.facts(n_expert, k, n_layer, file_bytes=file_bytes)
        experts = {n: layer.experts(n_expert) for n, layer in layers.items()}
        rows = [self._row(n, facts) for n in sorted(layers)]
        return checked(self._wide(facts, rows), rows, experts, str(self.path), self.warnings)

    def _wide(self, facts: ModelFacts, rows: list[dict[str, Any]]) -> ModelFacts:
        """Return the facts, with the width that a router shows if no config says it."""
        widths = {row["router_matrix"].shape[1] for row in rows if "router_matrix" in row}
        if facts.n_embd is None and len(widths) == 1:
            return replace(facts, n_embd=widths.pop())
        return facts

    def _row(self, layer: int, facts: ModelFacts) -> dict[str, Any]:
        tensors, n = self.layers[layer].others, facts.n_expert
        row: dict[str, Any] = {"layer": layer, "dense_bytes": self.layers[layer].dense_bytes}
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
        file, tensor = self.layers[layer].others[rest]
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
