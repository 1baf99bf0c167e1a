"""What a ``config.json`` says of a model: its numbers, which layers are dense, an estimate of sizes.

In: the path of the file. Out: the numbers of `Config`; of the file alone `ModelSizes`, whose sizes are
estimated from the widths of the layers.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tracekit.model_files.families import GATINGS
from tracekit.model_files.sizes import ModelSizes
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import GATINGS as KNOWN_GATINGS
from tracekit.trace.facts import ModelFacts, TraceFacts

_MOST_BYTES = 16 << 20
_MOST_LAYERS = 1 << 15
_N_EXPERT = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_TOP_K = (
    "num_experts_per_tok",
    "num_experts_per_token",
    "experts_per_token",
    "num_selected_experts",
    "moe_top_k",
    "moe_topk",
    "moe_k",
    "top_k_experts",
)
_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "intermediate_size", "ffn_hidden_size")
_N_LAYER = ("num_hidden_layers", "n_layers", "n_layer", "num_layers")
_HIDDEN = ("hidden_size", "d_model", "n_embd")
_EPS = ("rms_norm_eps", "norm_eps", "layer_norm_epsilon", "layer_norm_eps")
# Part of a multimodal model's config that is about text.
_NESTED = ("text_config", "language_config", "llm_config", "thinker_config")
# Of dbrx, the part that is about experts.
_OF_EXPERTS = "ffn_config"
# What the part about text may leave to the whole.
_SHARED = ("quantization_config", "torch_dtype", "dtype")
# Of hybrid models: a letter for each layer, and that of a layer with experts.
_PATTERN, _MOE_LETTER = "hybrid_override_pattern", "E"
_MOE_WORD = "sparse"  # of mlp_layer_types
_WHOLES = re.compile(r" *[0-9]{1,5} *(, *[0-9]{1,5} *)*")
# Families whose experts have two matrices, up and down, where others have a gate too.
_WITHOUT_GATE = ("nemotron_h",)
_DTYPE_BYTES = {"bfloat16": 2.0, "float16": 2.0, "float32": 4.0, "float8_e4m3fn": 1.0}
# MXFP4: 32 values of 4 bits share a scale of 8.
_MXFP4_BYTES = 17 / 32


@dataclass(frozen=True)
class Config:
    """The numbers of a ``config.json``.

    Attributes
    ----------
    values : mapping
        The part that is about the text model.
    name : str
        What sentences call the file.
    """

    values: Mapping[str, Any]
    name: str

    @classmethod
    def of_file(cls, path: Path) -> "Config":
        """Read a file.

        Raises
        ------
        TraceError
            It is no JSON object, or too large for one.
        """
        if path.stat().st_size > _MOST_BYTES:
            raise TraceError(f"{path} has more than 16 MiB, so it is no config.json of a model.")
        try:
            values = json.loads(path.read_bytes().decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{path} is no JSON; copy it again.") from error
        outer = values
        while isinstance(values, dict):
            inner = next((values[n] for n in _NESTED if isinstance(values.get(n), dict)), None)
            if inner is None:
                of_experts = values.get(_OF_EXPERTS)
                shared = {name: outer.get(name) for name in _SHARED}
                values = {name: value for name, value in values.items() if value is not None}
                more = of_experts if isinstance(of_experts, dict) else {}
                return cls({**shared, **more, **values}, str(path))
            values = inner
        raise TraceError(f"{path} is no JSON object, so it is no config.json of a model.")

    def whole(self, *names: str) -> int | None:
        """Return the first whole number that one of `names` has; None if there is none.

        A list, one for each layer, has it where all are the same.

        Raises
        ------
        TraceError
            There is something else.
        """
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and all(each == value[0] for each in value):
                value = value[0]
            if type(value) is not int or not 0 <= value <= 1 << 40:
                raise TraceError(
                    f"{self.name}: {name} must be a whole number, and is {value!r:.40}; correct it."
                )
            return value
        return None

    def wholes(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, or those of a text with commas; None if there is none."""
        value = self.values.get(name)
        if isinstance(value, str):
            return [int(each) for each in value.split(",")] if _WHOLES.fullmatch(value) else None
        is_list = isinstance(value, list) and all(type(each) is int for each in value)
        return value if is_list else None

    @property
    def model_type(self) -> str:
        """The family."""
        value = self.values.get("model_type")
        return value if isinstance(value, str) and value else "unknown"

    @cached_property
    def n_expert(self) -> int | None:
        """Experts of a MoE layer."""
        return self.whole(*_N_EXPERT)

    @property
    def top_k(self) -> int | None:
        """Experts that a token uses."""
        return self.whole(*_TOP_K)

    @cached_property
    def n_layer(self) -> int | None:
        """Layers, dense ones too.

        Raises
        ------
        TraceError
            More than a trace can have.
        """
        n = self.whole(*_N_LAYER)
        if n is not None and n > _MOST_LAYERS:
            raise TraceError(f"{self.name}: {n} layers are no size of a model; correct it.")
        return n

    @property
    def n_embd(self) -> int | None:
        """Width of what enters a layer."""
        return self.whole(*_HIDDEN)

    @property
    def norm_eps(self) -> float | None:
        """Epsilon of the norms."""
        for name in _EPS:
            value = self.values.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
                return float(value)
        return None

    @property
    def gating(self) -> str | None:
        """What selection ranks by, as the config or the family says."""
        said = self.values.get("scoring_func")
        return said if said in KNOWN_GATINGS else GATINGS.get(self.model_type)

    @property
    def groups(self) -> tuple[int, int]:
        """Expert groups, and how many stay unmasked."""
        n = self.whole("n_group") or 1
        used = self.whole("topk_group") or n
        is_plain = self.values.get("topk_method") == "greedy"
        return (1, 1) if is_plain or n == 1 or used >= n else (n, used)

    @property
    def group_warnings(self) -> list[str]:
        """A sentence if the family ranks groups otherwise than tracekit does."""
        if self.groups == (1, 1) or self.values.get("topk_method") != "group_limited_greedy":
            return []
        return [
            f"{self.name} ranks a group by its best expert, and tracekit by its two best, as "
            "llama.cpp does; ctrl may be below 100 %."
        ]

    def facts(self, n_expert: int, top_k: int, n_layer: int, **more: Any) -> ModelFacts:
        """Return the model's facts."""
        n_group, n_group_used = self.groups
        path = self.values.get("_name_or_path")
        called = path if isinstance(path, str) and path else Path(self.name).absolute().parent.name
        facts = ModelFacts(
            name=called,
            arch=self.model_type,
            n_layer=n_layer,
            n_expert=n_expert,
            top_k=top_k,
            n_embd=self.n_embd,
            gating=self.gating,
            n_group=n_group,
            n_group_used=n_group_used,
            norm_eps=self.norm_eps,
            **more,
        )
        TraceFacts(facts, "imported").check(self.name)
        return facts

    def moe_layers(self, n_layer: int) -> list[int]:
        """Return the numbers of the layers that have experts."""
        layers = range(n_layer)
        for name in ("moe_layers", "moe_layers_enum"):
            if (listed := self.wholes(name)) is not None:
                return [n for n in layers if n in set(listed)]
        for name, moe in (("mlp_layer_types", _MOE_WORD), (_PATTERN, _MOE_LETTER)):
            kinds = self.values.get(name)
            if isinstance(kinds, list | str) and moe in kinds:
                return [n for n, kind in zip(layers, kinds, strict=False) if kind == moe]
        frequency = self.values.get("moe_layer_freq")
        if isinstance(frequency, list):
            return [n for n, is_moe in zip(layers, frequency, strict=False) if is_moe]
        first = self.whole("first_k_dense_replace", "num_dense_layers") or 0
        first = max(first, self.whole("moe_layer_start_index") or 0)
        end = self.values.get("moe_layer_end_index")
        last = end if type(end) is int and end >= 0 else n_layer - 1
        dense = set(self.wholes("mlp_only_layers") or [])
        step = self.whole("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
        period, offset = self.whole("expert_layer_period"), self.whole("expert_layer_offset") or 0
        return [
            n
            for n in layers
            if first <= n <= last
            and n not in dense
            and (n + 1) % (step or 1) == 0
            and (period is None or n % max(1, period) == offset)
            and (not isinstance(frequency, int) or n % max(1, frequency) == 0)
        ]

    @property
    def n_matrices(self) -> int:
        """Matrices of an expert."""
        return 2 if self.model_type in _WITHOUT_GATE else 3

    def bytes_a_parameter(self) -> tuple[float, str]:
        """Return the size of a parameter of an expert, and the name of its type."""
        quantised = self.values.get("quantization_config")
        if isinstance(quantised, dict):
            method = quantised.get("quant_method")
            if method == "mxfp4":
                return _MXFP4_BYTES, "MXFP4"
            if method == "fp8":
                return 1.0, "FP8"
            bits, group = quantised.get("bits"), quantised.get("group_size")
            if type(bits) is int and 1 <= bits <= 16:
                # Each group has a scale of 16 bits and a zero point.
                more = (16 + bits) / group if type(group) is int and group > 0 else 0
                return (bits + more) / 8, f"{bits} bits"
            raise TraceError(
                f"{self.name} does not say how many bits a parameter has in its quantisation "
                f"({method!r:.40}); name the model's safetensors files, or give --expert-mib."
            )
        dtype = str(self.values.get("torch_dtype") or self.values.get("dtype") or "bfloat16")
        dtype = dtype.removeprefix("torch.")
        return _DTYPE_BYTES.get(dtype, 2.0), dtype


def read_config(path: Path, top_k: int | None = None) -> ModelSizes:
    """Return what a ``config.json`` says; the sizes of experts are estimated, and it says so.

    Raises
    ------
    TraceError
        It is of no MoE model, or lacks a number that is needed.
    """
    config = Config.of_file(path)
    n_expert, n_layer = config.n_expert, config.n_layer
    if not n_expert:
        raise TraceError(
            f"{path} names no number of experts ({', '.join(_N_EXPERT[:3])}), so it is of a dense "
            "model; name the config.json of a MoE model."
        )
    hidden, width = config.n_embd, config.whole(*_WIDTH)
    if not (n_layer and hidden and width):
        needed = {_N_LAYER[0]: n_layer, _HIDDEN[0]: hidden, _WIDTH[0]: width}
        missing = [name for name, value in needed.items() if not value]
        raise TraceError(f"{path} does not give {' and '.join(missing)}; add it.")
    facts = config.facts(n_expert, known_top_k(top_k or config.top_k, str(path)), n_layer)
    each, kind = config.bytes_a_parameter()
    n_matrices = config.n_matrices
    size = round(n_matrices * hidden * width * each)
    how = f"estimated from config.json: {n_matrices} × {hidden} × {width} parameters of {kind}"
    rows = [{"layer": n, "expert_bytes": size} for n in config.moe_layers(n_layer)]
    if not rows:
        raise TraceError(f"{path} leaves no layer with experts; name a MoE model.")
    return ModelSizes(facts, rows, how, tuple(config.group_warnings), str(path))


def known_top_k(top_k: int | None, name: str, beside: Sequence[str] = ()) -> int:
    """Return how many experts a token uses.

    Raises
    ------
    TraceError
        Nobody says it.
    """
    if top_k:
        return top_k
    more = f", and there is no {' or '.join(beside)} beside it" if beside else ""
    raise TraceError(
        f"{name} does not say how many experts a token uses{more}; give it with --top-k."
    )
