"""What a model's GGUF files say of its experts and its routers.

In: the path of the file, or of the first file of a split model. Out: `ModelSizes`. Of the weights,
only routers, their biases and the norms before them are read.
"""

import re
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.model_files.embeddings import Embeddings
from tracekit.model_files.ggml_types import DECODED, Kind, decoded, n_bytes
from tracekit.model_files.gguf import Gguf, Tensor
from tracekit.model_files.layers import Experts, checked
from tracekit.model_files.paths import parts_of
from tracekit.model_files.sizes import ModelSizes
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts

_LAYER = re.compile(r"blk\.(\d{1,5})\.(.+)")
# The weights that an engine reads for an expert. Biases are small and stay in memory.
_STACKED = re.compile(r"ffn_(?:gate|up|down|gate_up)_exps\.weight")
_SINGLE = re.compile(r"ffn_(?:gate|up|down)\.(\d{1,5})\.weight")
_BY_TOKEN = "ffn_gate_tid2eid.weight"
_ROUTER_SCALE = "ffn_gate_inp.scale"
_EMBEDDINGS = "token_embd.weight"
# By `expert_gating_func`; without the key, by architecture.
_GATINGS = {1: "softmax", 2: "sigmoid", 3: "logits", 4: "sqrt-softplus"}
_OF_ARCH = {
    **dict.fromkeys(
        (
            "qwen2moe",
            "qwen3moe",
            "qwen3next",
            "qwen3vlmoe",
            "olmoe",
            "llama",
            "granitemoe",
            "granitehybrid",
            "deepseek",
            "deepseek2",
            "dbrx",
            "grok",
            "arctic",
            "jamba",
            "phimoe",
            "ernie4_5-moe",
            "hunyuan-moe",
            "bailingmoe",
            "gemma4",
        ),
        "softmax",
    ),
    "gpt-oss": "logits",
    "llama4": "logits",
    "glm4moe": "sigmoid",
    "grovemoe": "sigmoid",
}
# The weight of the norm whose product the router multiplies; None: not an RMS norm.
_ANY_NORM = "ffn_norm.weight"
_NORMS = {
    **dict.fromkeys(("gpt-oss", "glm4moe"), "post_attention_norm.weight"),
    **dict.fromkeys(("phimoe", "dbrx"), None),
    "gemma4": _ROUTER_SCALE,  # over the square root of the width
}


def read_gguf(path: Path) -> ModelSizes:
    """Read the headers of a model's GGUF files.

    Raises
    ------
    TraceError
        A file is missing, damaged, no model, has no experts, or contradicts itself.
    """
    paths = parts_of(path, ".gguf")
    with ExitStack() as stack:
        files = []
        for each in paths:
            opened = stack.enter_context(each.open("rb"))
            files.append(Gguf(opened, each.stat().st_size, str(each)))
        n_parts = files[0].whole("split.count")
        if len(files) == 1 and n_parts > 1:
            number = files[0].whole("split.no") + 1
            raise TraceError(
                f"{path} holds part {number} of {n_parts} of a split model; give the parts the names "
                f"that they had (they end in -{number:05}-of-{n_parts:05}.gguf), and name the first."
            )
        model = _Model(path, dict(zip(paths, files, strict=True)))
        return model.sizes(sum(each.stat().st_size for each in paths))


class _Model:
    def __init__(self, path: Path, files: dict[Path, Gguf]):
        self.path, self.files = path, files
        self.first = next(iter(files.values()))
        arch = self.first.text("general.architecture")
        if arch is None:
            raise TraceError(f"{path} does not name its architecture, so it is no model.")
        self.arch = arch
        n_stored = self.first.whole(f"{arch}.block_count")
        self.n_layer = n_stored - self.first.whole(f"{arch}.nextn_predict_layers")
        # Tensors by layer, then by the rest of their names, each with the file that holds it.
        self.layers: dict[int, dict[str, tuple[Gguf, Tensor]]] = {}
        seen: set[str] = set()
        for file in files.values():
            for name, tensor in file.tensors.items():
                if name in seen:
                    raise TraceError(f"{path} holds {name!r:.80} twice; download it again.")
                seen.add(name)
                match = _LAYER.fullmatch(name)
                if match and int(match[1]) < self.n_layer:
                    self.layers.setdefault(int(match[1]), {})[match[2]] = file, tensor
        self.warnings: list[str] = []

    def sizes(self, file_bytes: int) -> ModelSizes:
        n_expert = self.first.whole(f"{self.arch}.expert_count")
        top_k = self._top_k()
        groups = max(1, self.first.whole(f"{self.arch}.expert_group_count"))
        used = self.first.whole(f"{self.arch}.expert_group_used_count") if groups > 1 else 1
        eps = self.first.number(f"{self.arch}.attention.layer_norm_rms_epsilon")
        experts: dict[int, Experts] = {}
        for layer, tensors in self.layers.items():
            found = Experts()
            for rest, (_, tensor) in tensors.items():
                if _STACKED.fullmatch(rest) and len(tensor.shape) == 3:
                    found.add_stack(tensor.shape[0], tensor.n_bytes, tensor.kind.name)
                elif match := _SINGLE.fullmatch(rest):
                    found.add_one(int(match[1]), tensor.n_bytes, tensor.kind.name)
            if found:
                experts[layer] = found
        facts = ModelFacts(
            name=self.first.text("general.name") or self.path.stem,
            arch=self.arch,
            n_layer=self.n_layer,
            n_expert=n_expert,
            top_k=top_k,
            n_embd=self.first.whole(f"{self.arch}.embedding_length") or None,
            gating=self._gating(),
            n_group=groups,
            n_group_used=used,
            norm_eps=eps,
            file_bytes=file_bytes,
        )
        rows = [self._row(layer, experts[layer], facts) for layer in sorted(experts)]
        sizes = checked(facts, rows, experts, str(self.path), self.warnings)
        return replace(sizes, embeddings=self._embeddings(facts.n_embd))

    def _embeddings(self, n_embd: int | None) -> Embeddings | None:
        """Return the table of embeddings; None if there is none, or of a type not decoded here."""
        for path, file in self.files.items():
            tensor = file.tensors.get(_EMBEDDINGS)
            if tensor is None or len(tensor.shape) != 2 or tensor.shape[1] != n_embd:
                continue
            if tensor.kind.name not in DECODED:
                return None
            n_vocab, width = tensor.shape
            row_bytes = n_bytes(tensor.kind, (width,))
            decode = partial(decoded, tensor.kind)
            return Embeddings(path, tensor.start, n_vocab, width, row_bytes, decode)
        return None

    def _top_k(self) -> int:
        """Return how many experts a token uses: the same at each layer with experts."""
        key = f"{self.arch}.expert_used_count"
        by_layer = self.first.wholes(key)
        numbers = {n for n in by_layer if n}
        if len(numbers) > 1:
            raise TraceError(
                f"{self.path}: {key} depends on the layer ({', '.join(map(str, sorted(numbers)))}), "
                "and a trace has one number for all layers; give --top-k and --expert-mib instead of "
                "--model."
            )
        return max(numbers, default=0)

    def _gating(self) -> str | None:
        key = self.first.whole(f"{self.arch}.expert_gating_func")
        return _GATINGS.get(key) if key else _OF_ARCH.get(self.arch)

    def _row(self, layer: int, experts: Experts, facts: ModelFacts) -> dict[str, Any]:
        tensors = self.layers[layer]
        dense = sum(
            tensor.n_bytes
            for rest, (_, tensor) in tensors.items()
            if not _STACKED.fullmatch(rest) and not _SINGLE.fullmatch(rest)
        )
        row: dict[str, Any] = {"layer": layer, "dense_bytes": dense}
        n, width = facts.n_expert, facts.n_embd
        if _BY_TOKEN not in tensors:  # else the token's id selects, and the router only weights
            row["router_matrix"] = self._array(layer, "ffn_gate_inp.weight", (n, width))
            row["router_bias"] = self._array(layer, "ffn_gate_inp.bias", (n,))
            for name in ("exp_probs_b.bias", "exp_probs_b"):
                if name in tensors:
                    row["selection_bias"] = self._array(layer, name, (n,))
        norm = _NORMS.get(self.arch, _ANY_NORM)
        row["norm_weight"] = None if norm is None else self._array(layer, norm, (width,))
        if norm == _ROUTER_SCALE and row["norm_weight"] is not None and width is not None:
            row["norm_weight"] *= np.float32(1 / np.sqrt(width))
        return {name: value for name, value in row.items() if value is not None}

    def _array(self, layer: int, name: str, shape: tuple[int | None, ...]) -> np.ndarray | None:
        """Return a small array of a layer; None if the layer has none of that name and shape."""
        file, tensor = self.layers[layer].get(name, (None, None))
        if file is None or tensor is None or tensor.shape != shape:
            return None
        found = file.values(tensor)
        if found is None:
            self._leave_out(name, tensor.kind)
        return found

    def _leave_out(self, name: str, kind: Kind) -> None:
        sentence = (
            f"{self.path} stores {name} as {kind.name}, which is not decoded here; what needs it "
            "(stale-gate, ctrl) cannot run."
        )
        if sentence not in self.warnings:
            self.warnings.append(sentence)
