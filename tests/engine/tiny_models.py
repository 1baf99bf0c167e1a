"""Tiny MoE models with random weights, one for each way llama.cpp's architectures route.

They are so small that a file is written in milliseconds. The text they generate means nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.quants import quantize
from gguf_parts import add_keys, add_vocabulary

D, HEADS, KV_HEADS, HEAD, FF, FF_EXPERT, EXPERTS, TOP_K, LAYERS = 64, 2, 1, 32, 96, 32, 8, 2, 3
SOFTMAX, SIGMOID, SQRT_SOFTPLUS = 1, 2, 4

Shapes = dict[str, tuple[int, ...]]  # as numpy has them: the last is the fastest


@dataclass(frozen=True)
class Tiny:
    """An architecture: its keys, the tensors of layer i, the types of its expert weights in turn."""

    arch: str
    layer: Callable[[int], Shapes]
    keys: dict[str, object] = field(default_factory=dict)
    extra: Shapes = field(default_factory=dict)
    expert_types: tuple[Type, ...] = (Type.Q8_0,)
    layers: int = LAYERS
    output_norm: str = "output_norm"
    gating: str = "softmax"
    moe_layers: tuple[int, ...] = (0, 1, 2)
    by_token: tuple[int, ...] = ()  # layers where a table by token id selects


def attention(_i: int, q_norm: int | None = None, bias: bool = False) -> Shapes:
    shapes: Shapes = {
        "attn_norm.weight": (D,),
        "attn_q.weight": (HEADS * HEAD, D),
        "attn_k.weight": (KV_HEADS * HEAD, D),
        "attn_v.weight": (KV_HEADS * HEAD, D),
        "attn_output.weight": (D, HEADS * HEAD),
    }
    if q_norm:
        shapes |= {"attn_q_norm.weight": (q_norm,), "attn_k_norm.weight": (q_norm,)}
    if bias:
        shapes |= {
            "attn_q.bias": (HEADS * HEAD,),
            "attn_k.bias": (KV_HEADS * HEAD,),
            "attn_v.bias": (KV_HEADS * HEAD,),
        }
    return shapes


def dense() -> Shapes:
    return {"ffn_gate.weight": (FF, D), "ffn_up.weight": (FF, D), "ffn_down.weight": (D, FF)}


def shared(ff: int = FF_EXPERT) -> Shapes:
    return {
        "ffn_gate_shexp.weight": (ff, D),
        "ffn_up_shexp.weight": (ff, D),
        "ffn_down_shexp.weight": (D, ff),
    }


def experts(ff: int = FF_EXPERT, fused: bool = False, bias: bool = False) -> Shapes:
    shapes: Shapes = {
        "ffn_gate_inp.weight": (EXPERTS, D),
        "ffn_down_exps.weight": (EXPERTS, D, ff),
    }
    if fused:
        shapes["ffn_gate_up_exps.weight"] = (EXPERTS, 2 * ff, D)
    else:
        shapes |= {
            "ffn_gate_exps.weight": (EXPERTS, ff, D),
            "ffn_up_exps.weight": (EXPERTS, ff, D),
        }
    if bias:
        shapes["exp_probs_b.bias"] = (EXPERTS,)
    return shapes


NORM = {"ffn_norm.weight": (D,)}


def _qwen3moe(i: int) -> Shapes:
    return attention(i, q_norm=HEAD) | NORM | experts()


def _qwen2moe(i: int) -> Shapes:
    gate: Shapes = {"ffn_gate_inp_shexp.weight": (D,)}
    return attention(i, bias=True) | NORM | experts() | gate | shared(2 * FF_EXPERT)


def _olmoe(i: int) -> Shapes:
    both: Shapes = {"attn_k.weight": (D, D), "attn_v.weight": (D, D)}
    return attention(i, q_norm=D) | both | NORM | experts()


def _mixtral(i: int) -> Shapes:
    return attention(i) | NORM | experts()


def _gpt_oss(i: int) -> Shapes:
    return (
        attention(i, bias=True)
        | experts()
        | {
            "post_attention_norm.weight": (D,),
            "attn_sinks.weight": (HEADS,),
            "attn_output.bias": (D,),
            "ffn_gate_inp.bias": (EXPERTS,),
            "ffn_gate_exps.bias": (EXPERTS, FF_EXPERT),
            "ffn_up_exps.bias": (EXPERTS, FF_EXPERT),
            "ffn_down_exps.bias": (EXPERTS, D),
        }
    )


LORA, ROPE, NOPE = 32, 16, 32


def _deepseek2(i: int) -> Shapes:
    shapes: Shapes = {
        "attn_norm.weight": (D,),
        "attn_q_a_norm.weight": (LORA,),
        "attn_kv_a_norm.weight": (LORA,),
        "attn_q_a.weight": (LORA, D),
        "attn_q_b.weight": (HEADS * (NOPE + ROPE), LORA),
        "attn_kv_a_mqa.weight": (LORA + ROPE, D),
        "attn_k_b.weight": (HEADS, LORA, NOPE),
        "attn_v_b.weight": (HEADS, HEAD, LORA),
        "attn_output.weight": (D, HEADS * HEAD),
    }
    return shapes | NORM | (dense() if i == 0 else experts(bias=True) | shared())


def _glm4moe(i: int) -> Shapes:
    norm: Shapes = {"post_attention_norm.weight": (D,)}
    shapes = attention(i, q_norm=HEAD, bias=True) | norm
    shapes |= dense() if i == 0 else experts(bias=True) | shared()
    if i == LAYERS:  # the layer that predicts the token after the next; llama.cpp does not run it
        shapes |= {
            "nextn.eh_proj.weight": (D, 2 * D),
            "nextn.enorm.weight": (D,),
            "nextn.hnorm.weight": (D,),
        }
    return shapes


def _lfm2moe(i: int) -> Shapes:
    if i == 1:
        mixer: Shapes = attention(i, q_norm=HEAD)
    else:
        mixer = {
            "attn_norm.weight": (D,),
            "shortconv.conv.weight": (D, 3),
            "shortconv.in_proj.weight": (3 * D, D),
            "shortconv.out_proj.weight": (D, D),
        }
    return mixer | NORM | (dense() if i == 0 else experts(bias=True))


def _gemma4(i: int) -> Shapes:
    return (
        attention(i, q_norm=HEAD)
        | NORM
        | dense()
        | experts(fused=True)
        | {
            "ffn_gate_inp.scale": (D,),
            "post_attention_norm.weight": (D,),
            "post_ffw_norm.weight": (D,),
            "pre_ffw_norm_2.weight": (D,),
            "post_ffw_norm_1.weight": (D,),
            "post_ffw_norm_2.weight": (D,),
        }
    )


def _llama4(i: int) -> Shapes:
    return attention(i) | NORM | (experts() | shared() if i % 2 else dense())


CHUNK_EXPERTS = EXPERTS // 2


def _grovemoe(i: int) -> Shapes:
    return _qwen3moe(i) | {
        "ffn_gate_chexps.weight": (CHUNK_EXPERTS, FF_EXPERT, D),
        "ffn_up_chexps.weight": (CHUNK_EXPERTS, FF_EXPERT, D),
        "ffn_down_chexps.weight": (CHUNK_EXPERTS, D, FF_EXPERT),
    }


STREAMS, RATIOS, TOKENS = 4, (0, 4, 4, 128), 257


def _compressor(name: str, width: int, ratio: int) -> Shapes:
    return {
        f"{name}_kv.weight": (width, D),
        f"{name}_gate.weight": (width, D),
        f"{name}_ape.weight": (ratio, width),
        f"{name}_norm.weight": (D,),
    }


def _deepseek4(i: int) -> Shapes:
    shapes: Shapes = {
        "attn_norm.weight": (D,),
        "attn_sinks.weight": (HEADS,),
        "attn_q_a.weight": (LORA, D),
        "attn_q_a_norm.weight": (LORA,),
        "attn_q_b.weight": (HEADS * D, LORA),
        "attn_kv.weight": (D, D),
        "attn_kv_a_norm.weight": (D,),
        "attn_output_a.weight": (LORA, HEADS * D),
        "attn_output_b.weight": (D, LORA),
    }
    for part in ("attn", "ffn"):  # each token has several residual streams
        shapes |= {
            f"hc_{part}_fn.weight": (STREAMS * (2 + STREAMS), STREAMS * D),
            f"hc_{part}_base.weight": (STREAMS * (2 + STREAMS),),
            f"hc_{part}_scale.weight": (3,),
        }
    if RATIOS[i] == 4:
        shapes |= _compressor("attn_compressor", 2 * D, 4) | {
            "indexer.proj.weight": (HEADS, D),
            "indexer.attn_q_b.weight": (HEADS * D, LORA),
            **_compressor("indexer_compressor", 2 * D, 4),
        }
    elif RATIOS[i]:
        shapes |= _compressor("attn_compressor", D, RATIOS[i])
    table: Shapes = {"ffn_gate_tid2eid.weight": (TOKENS, TOP_K)}
    return shapes | NORM | shared() | (experts() | table if i < 2 else experts(bias=True))


_EXPERT_FF = {"expert_feed_forward_length": FF_EXPERT}

MODELS = {
    tiny.arch: tiny
    for tiny in (
        Tiny("qwen3moe", _qwen3moe, _EXPERT_FF),
        Tiny(
            "qwen2moe",
            _qwen2moe,
            {**_EXPERT_FF, "expert_shared_feed_forward_length": 2 * FF_EXPERT},
            expert_types=(Type.Q4_0, Type.Q8_0, Type.F16),
        ),
        Tiny("olmoe", _olmoe, {"feed_forward_length": FF_EXPERT, "attention.head_count_kv": HEADS}),
        Tiny("llama", _mixtral, {"feed_forward_length": FF_EXPERT}, expert_types=(Type.F32,)),
        Tiny(
            "gpt-oss",
            _gpt_oss,
            {**_EXPERT_FF, "attention.sliding_window": 16},
            expert_types=(Type.MXFP4,),
            gating="logits",
        ),
        Tiny(
            "deepseek2",
            _deepseek2,
            {
                **_EXPERT_FF,
                "leading_dense_block_count": 1,
                "attention.q_lora_rank": LORA,
                "attention.kv_lora_rank": LORA,
                "attention.key_length": LORA + ROPE,
                "attention.value_length": LORA,
                "attention.key_length_mla": NOPE + ROPE,
                "attention.value_length_mla": HEAD,
                "attention.head_count_kv": 1,
                "rope.dimension_count": ROPE,
                "expert_shared_count": 1,
                "expert_weights_scale": 2.5,
                "expert_weights_norm": True,
                "expert_gating_func": SIGMOID,
                "expert_group_count": 4,
                "expert_group_used_count": 2,
            },
            gating="sigmoid",
            moe_layers=(1, 2),
        ),
        Tiny(
            "glm4moe",
            _glm4moe,
            {
                **_EXPERT_FF,
                "leading_dense_block_count": 1,
                "expert_shared_count": 1,
                "expert_weights_norm": True,
                "nextn_predict_layers": 1,
            },
            layers=LAYERS + 1,
            gating="sigmoid",
            moe_layers=(1, 2),
        ),
        Tiny(
            "lfm2moe",
            _lfm2moe,
            {
                **_EXPERT_FF,
                "leading_dense_block_count": 1,
                "shortconv.l_cache": 3,
                "expert_gating_func": SIGMOID,
                "attention.head_count_kv": [0, KV_HEADS, 0],
            },
            output_norm="token_embd_norm",
            gating="sigmoid",
            moe_layers=(1, 2),
        ),
        Tiny(
            "gemma4",
            _gemma4,
            {
                **_EXPERT_FF,
                "attention.sliding_window": 16,
                "attention.sliding_window_pattern": [True, True, False],
                "attention.key_length_swa": HEAD,
                "attention.value_length_swa": HEAD,
                "embedding_length_per_layer_input": 0,
                "rope.dimension_count_swa": HEAD,
            },
            extra={"rope_freqs.weight": (HEAD // 2,)},
        ),
        Tiny(
            "llama4",
            _llama4,
            {**_EXPERT_FF, "interleave_moe_layer_step": 2},
            layers=4,
            gating="logits",
            moe_layers=(1, 3),
        ),
        Tiny(
            "grovemoe",
            _grovemoe,
            {
                **_EXPERT_FF,
                "expert_chunk_feed_forward_length": FF_EXPERT,
                "expert_group_scale": 0.05,
                "experts_per_group": 2,
            },
            gating="sigmoid",
        ),
        Tiny(
            "deepseek4",
            _deepseek4,
            {
                **_EXPERT_FF,
                "feed_forward_length": FF_EXPERT,
                "attention.key_length": D,
                "attention.value_length": D,
                "attention.q_lora_rank": LORA,
                "attention.sliding_window": 128,
                "attention.indexer.head_count": HEADS,
                "attention.indexer.key_length": D,
                "attention.indexer.top_k": 8,
                "attention.output_group_count": 1,
                "attention.output_lora_rank": LORA,
                "attention.compress_rope_freq_base": 10000.0,
                "attention.compress_ratios": list(RATIOS),
                "hyper_connection.count": STREAMS,
                "hyper_connection.sinkhorn_iterations": 4,
                "hyper_connection.epsilon": 1e-6,
                "hash_layer_count": 2,
                "swiglu_clamp_exp": [10.0] * 4,
                "expert_shared_count": 1,
                "expert_weights_scale": 1.5,
                "expert_weights_norm": True,
                "expert_gating_func": SQRT_SOFTPLUS,
            },
            extra={
                "output_hc_fn.weight": (STREAMS, STREAMS * D),
                "output_hc_base.weight": (STREAMS,),
                "output_hc_scale.weight": (1,),
            },
            layers=4,
            gating="sqrt-softplus",
            moe_layers=(0, 1, 2, 3),
            by_token=(0, 1),
        ),
        Tiny(
            "granitemoe",
            _mixtral,
            {"feed_forward_length": FF_EXPERT, "logit_scale": 2.0, "embedding_scale": 12.0},
        ),
    )
}


def write(
    path: Path,
    arch: str,
    *,
    dense_only: bool = False,
    tensors_a_file: int = 0,
    layers: int = 0,
    chat_template: str | None = None,
    odd: dict[str, object] | None = None,
    change: Callable[[str, np.ndarray], np.ndarray] | None = None,
    router_type: Type = Type.F32,
) -> Path:
    """Write the tiny model of an architecture.

    Parameters
    ----------
    dense_only : bool
        Write a model without experts, as a llama is.
    tensors_a_file : int
        Split the model into files ``-00001-of-…`` of this many tensors.
    layers : int
        Make this many layers instead of the architecture's number.
    chat_template : str, optional
    odd : dict, optional
        Keys of the architecture with other values than they should have; None leaves a key out.
    change : callable, optional
        Called with each tensor's name and values; the values that it returns are written.
    router_type : GGMLQuantizationType
    """
    tiny = MODELS[arch]
    n_layer = layers or tiny.layers
    rng = np.random.default_rng(0)
    writer = GGUFWriter(path, tiny.arch, split_max_tensors=tensors_a_file)
    vocabulary = add_vocabulary(writer)
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    keys: dict[str, object] = {
        "block_count": n_layer,
        "context_length": 1024,
        "embedding_length": D,
        "feed_forward_length": FF,
        "attention.head_count": HEADS,
        "attention.head_count_kv": KV_HEADS,
        "attention.key_length": HEAD,
        "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": HEAD,
        "rope.freq_base": 10000.0,
        "expert_count": EXPERTS,
        "expert_used_count": TOP_K,
    } | tiny.keys
    if dense_only:
        keys = {name: value for name, value in keys.items() if "expert" not in name}
    keys |= odd or {}
    add_keys(writer, arch, {name: value for name, value in keys.items() if value is not None})
    shapes: Shapes = {
        "token_embd.weight": (vocabulary, D),
        f"{tiny.output_norm}.weight": (D,),
        "output.weight": (vocabulary, D),
        **tiny.extra,
    }
    for i in range(n_layer):
        layer = attention(i) | NORM | dense() if dense_only else tiny.layer(i)
        shapes |= {f"blk.{i}.{name}": shape for name, shape in layer.items()}
    stacked = 0
    for name, shape in shapes.items():
        data = _values(rng, name, shape)
        if change is not None:
            data = change(name, data)
        if name.endswith("ffn_gate_inp.weight"):
            writer.add_tensor(name, quantize(data, router_type), raw_dtype=router_type)
        elif "_exps.weight" in name:
            kind = tiny.expert_types[stacked % len(tiny.expert_types)]
            stacked += 1
            writer.add_tensor(name, quantize(data, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _values(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    if name == "rope_freqs.weight":
        return np.ones(shape, np.float32)
    if "tid2eid" in name:
        rows = [rng.permutation(EXPERTS)[: shape[1]] for _ in range(shape[0])]
        return np.array(rows, np.int32)
    values = rng.standard_normal(shape, np.float32)
    if len(shape) == 1:
        return 1 + 0.1 * values if "bias" not in name else 0.1 * values
    return values / np.sqrt(shape[-1]).astype(np.float32)
