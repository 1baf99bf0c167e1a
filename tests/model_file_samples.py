"""Model files that tests write by hand: safetensors, GGUF, and what is in the config beside them."""

import json
import struct

import numpy as np

N_LAYER, N_EXPERT, TOP_K, WIDTH, INNER = 3, 8, 2, 16, 4
DENSE_LAYER = 0
MOE_LAYERS = [1, 2]
CONFIG = {
    "model_type": "qwen3_moe",
    "num_hidden_layers": N_LAYER,
    "hidden_size": WIDTH,
    "moe_intermediate_size": INNER,
    "intermediate_size": 64,
    "num_experts": N_EXPERT,
    "num_experts_per_tok": TOP_K,
    "mlp_only_layers": [DENSE_LAYER],
    "rms_norm_eps": 1e-6,
    "torch_dtype": "bfloat16",
}
_DTYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int64": "I64", "uint16": "BF16"}


def bf16(values: np.ndarray) -> np.ndarray:
    """Return the upper halves of float32 values, which `safetensors` writes as BF16."""
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def safetensors(tensors: dict[str, np.ndarray], metadata: dict | None = None) -> bytes:
    """Return a safetensors file."""
    header: dict = {} if metadata is None else {"__metadata__": metadata}
    at = 0
    for name, array in tensors.items():
        place = [at, at + array.nbytes]
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": place,
        }
        at = place[1]
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(a.tobytes() for a in tensors.values())


def router(layer: int) -> np.ndarray:
    """Return the router matrix of a layer, in numbers that bfloat16 has exactly."""
    return np.random.default_rng(layer).integers(-8, 8, (N_EXPERT, WIDTH)).astype(np.float32)


def norm(layer: int) -> np.ndarray:
    return np.full(WIDTH, 1.0 + layer, np.float32)


def around(layer: int, block: str = "mlp.gate") -> dict[str, np.ndarray]:
    """Return what a MoE layer has beside its experts."""
    prefix = f"model.layers.{layer}"
    return {
        f"{prefix}.{block}.weight": bf16(router(layer)),
        f"{prefix}.post_attention_layernorm.weight": bf16(norm(layer)),
        f"{prefix}.self_attn.q_proj.weight": bf16(np.ones((WIDTH, WIDTH))),
    }


def per_expert(block: str = "mlp") -> dict[str, np.ndarray]:
    """Return a model whose experts are tensors of their own, in BF16."""
    tensors = {"model.embed_tokens.weight": bf16(np.ones((10, WIDTH)))}
    tensors["model.layers.0.mlp.gate_proj.weight"] = bf16(np.ones((64, WIDTH)))
    for layer in MOE_LAYERS:
        tensors |= around(layer, f"{block}.gate")
        for expert in range(N_EXPERT):
            for name, shape in (
                ("gate_proj", (INNER, WIDTH)),
                ("up_proj", (INNER, WIDTH)),
                ("down_proj", (WIDTH, INNER)),
            ):
                key = f"model.layers.{layer}.{block}.experts.{expert}.{name}.weight"
                tensors[key] = bf16(np.ones(shape))
    return tensors


EXPERT_BYTES = 3 * INNER * WIDTH * 2  # of `per_expert`, and of the estimate from CONFIG


def gguf(
    keys: dict[str, object],
    tensors: dict[str, tuple[int, tuple[int, ...], bytes]],
    version: int = 3,
    claims: tuple[int, int] | None = None,
) -> bytes:
    """Return a GGUF file: keys, and type, shape (as numpy has it) and data of each tensor."""
    n_tensors, n_keys = claims or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_keys)
    for key, value in keys.items():
        head += _text(key) + _value(value)
    at = 0
    for name, (kind, shape, data) in tensors.items():
        head += _text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind, at)
        at += -(-len(data) // 32) * 32
    head += b"\0" * (-len(head) % 32)
    return head + b"".join(d + b"\0" * (-len(d) % 32) for _, _, d in tensors.values())


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if value and isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    return struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)


F32, BF16 = 0, 30
KEYS: dict[str, object] = {
    "general.architecture": "qwen3moe",
    "general.name": "tiny",
    "tokenizer.ggml.tokens": ["a", "b", "c"],
    "qwen3moe.block_count": N_LAYER,
    "qwen3moe.embedding_length": WIDTH,
    "qwen3moe.expert_count": N_EXPERT,
    "qwen3moe.expert_used_count": TOP_K,
    "qwen3moe.attention.layer_norm_rms_epsilon": 1e-6,
}


def f32(array: np.ndarray) -> tuple[int, tuple[int, ...], bytes]:
    return F32, array.shape, np.ascontiguousarray(array, np.float32).tobytes()


def gguf_tensors() -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """Return the tensors of a model with a dense layer and two MoE layers, experts in BF16."""
    tensors = {"blk.0.ffn_up.weight": f32(np.ones((32, WIDTH)))}
    for layer in MOE_LAYERS:
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = f32(router(layer))
        tensors[f"blk.{layer}.ffn_norm.weight"] = f32(norm(layer))
        for name, shape in (
            ("gate", (N_EXPERT, INNER, WIDTH)),
            ("up", (N_EXPERT, INNER, WIDTH)),
            ("down", (N_EXPERT, WIDTH, INNER)),
        ):
            data = bf16(np.ones(shape)).tobytes()
            tensors[f"blk.{layer}.ffn_{name}_exps.weight"] = (BF16, shape, data)
    return tensors
