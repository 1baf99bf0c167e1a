"""A model of real layer sizes with random weights, for the benchmarks to run."""

import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))

from gguf_parts import add_keys, add_vocabulary

# Qwen3-30B-A3B's layers: 2048 wide, 32 heads of 128, 128 experts of 768, 8 used.
D, HEADS, KV_HEADS, HEAD, FF_EXPERT, EXPERTS, TOP_K = 2048, 32, 4, 128, 768, 128, 8
Q4_0 = GGMLQuantizationType.Q4_0
BLOCK, BLOCK_BYTES = 32, 18


def write(path: Path, layers: int) -> None:
    """Write the model: 360 MB a layer."""
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, "qwen3moe")
    vocabulary = add_vocabulary(writer)
    add_keys(
        writer,
        "qwen3moe",
        {
            "block_count": layers,
            "context_length": 4096,
            "embedding_length": D,
            "feed_forward_length": FF_EXPERT,
            "expert_feed_forward_length": FF_EXPERT,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV_HEADS,
            "attention.key_length": HEAD,
            "attention.value_length": HEAD,
            "attention.layer_norm_rms_epsilon": 1e-6,
            "rope.freq_base": 1e6,
            "expert_count": EXPERTS,
            "expert_used_count": TOP_K,
        },
    )
    # All layers share one stack of random blocks. They route differently because of their routers.
    up = _blocks(rng, (EXPERTS, FF_EXPERT, D))
    down = up.reshape(EXPERTS, D, -1)
    q, k = up[:6].reshape(-1, up.shape[2])[: HEADS * HEAD], up[0, : KV_HEADS * HEAD]
    out = up[:6].reshape(-1)[: D * HEADS * HEAD // BLOCK * BLOCK_BYTES].reshape(D, -1)
    ones = np.ones(D, np.float32)
    embedding = 4 * rng.standard_normal((vocabulary, D), np.float32)  # large, so that tokens differ
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", ones)
    writer.add_tensor("output.weight", rng.standard_normal((vocabulary, D), np.float32) / 45)
    for i in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", ones)
        for name in ("attn_q_norm", "attn_k_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", ones[:HEAD])
        router = rng.standard_normal((EXPERTS, D), np.float32) / 45
        writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", router)
        for name, data in (
            ("attn_q", q),
            ("attn_k", k),
            ("attn_v", k),
            ("attn_output", out),
            ("ffn_gate_exps", up),
            ("ffn_up_exps", up),
            ("ffn_down_exps", down),
        ):
            writer.add_tensor(f"blk.{i}.{name}.weight", data, raw_dtype=Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _blocks(rng: np.random.Generator, shape: tuple[int, int, int]) -> np.ndarray:
    """Return random Q4_0 blocks of weights of a usual size, uint8 [..., bytes of a row]."""
    count = int(np.prod(shape)) // BLOCK
    # Nibbles 1 to 15 mean −7 to 7. The mean must be zero, or all tokens would route alike.
    low, high = rng.integers(1, 16, (2, count, BLOCK_BYTES), np.uint8)
    blocks = low | high << 4
    blocks[:, :2] = np.frombuffer(np.float16(0.005).tobytes(), np.uint8)
    return blocks.reshape(shape[0], shape[1], -1)
