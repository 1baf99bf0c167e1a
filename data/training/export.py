"""Write the trained weights as a GGUF in qwen3moe form."""

from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers import Tokenizer
from torch import Tensor

from .model import Shape, TinyMoE
from .tokens import END_OF_TEXT, merges

Q8_0 = gguf.GGMLQuantizationType.Q8_0


def _metadata(writer: gguf.GGUFWriter, shape: Shape, name: str) -> None:
    writer.add_name(name)
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(2)
    writer.add_block_count(shape.n_layer)
    writer.add_context_length(shape.n_context)
    writer.add_embedding_length(shape.n_embd)
    writer.add_feed_forward_length(shape.n_ff * shape.top_k)  # unused: there is no dense layer
    writer.add_expert_feed_forward_length(shape.n_ff)
    writer.add_expert_count(shape.n_expert)
    writer.add_expert_used_count(shape.top_k)
    writer.add_head_count(shape.n_head)
    writer.add_head_count_kv(shape.n_head_kv)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.n_vocab)


def _vocabulary(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    end = tokenizer.token_to_id(END_OF_TEXT)
    tokens = [tokenizer.id_to_token(i) for i in range(tokenizer.get_vocab_size())]
    types = [gguf.TokenType.NORMAL] * len(tokens)
    types[end] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges(tokenizer))
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)


def _tensors(model: TinyMoE) -> dict[str, Tensor]:
    """Name the weights as llama.cpp does; each row is as long as the vector it multiplies."""
    tensors = {
        "token_embd": model.embedding,
        "output_norm": model.norm,
        "output": model.head,
    }
    for i, layer in enumerate(model.layers):
        attention, mixture = layer.attention, layer.mixture
        gate, up = mixture.gate_up.chunk(2, dim=-1)
        tensors |= {
            f"blk.{i}.attn_norm": attention.norm,
            f"blk.{i}.attn_q": attention.q,
            f"blk.{i}.attn_q_norm": attention.q_norm,
            f"blk.{i}.attn_k": attention.k,
            f"blk.{i}.attn_k_norm": attention.k_norm,
            f"blk.{i}.attn_v": attention.v,
            f"blk.{i}.attn_output": attention.out,
            f"blk.{i}.ffn_norm": mixture.norm,
            f"blk.{i}.ffn_gate_inp": mixture.router,
            f"blk.{i}.ffn_gate_exps": gate.transpose(1, 2),
            f"blk.{i}.ffn_up_exps": up.transpose(1, 2),
            f"blk.{i}.ffn_down_exps": mixture.down.transpose(1, 2),
        }
    return tensors


def export(model: TinyMoE, tokenizer: Tokenizer, path: Path) -> None:
    """Write a GGUF: matrices in Q8_0; norms and routers in F32, so that routing stays exact."""
    writer = gguf.GGUFWriter(str(path), "qwen3moe")
    _metadata(writer, model.shape, path.stem)
    _vocabulary(writer, tokenizer)
    for name, tensor in _tensors(model).items():
        values = np.ascontiguousarray(tensor.detach().float().numpy())
        if values.ndim == 1 or name.endswith("ffn_gate_inp"):
            writer.add_tensor(f"{name}.weight", values)
        else:
            writer.add_tensor(f"{name}.weight", quantize(values, Q8_0), raw_dtype=Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
