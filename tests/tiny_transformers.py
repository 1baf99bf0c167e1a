"""Tiny random models of the transformers library, one of each family that tests record."""

from types import SimpleNamespace

N_LAYER, N_EXPERT, TOP_K, N_EMBD, VOCABULARY = 3, 8, 2, 32, 96

SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": N_EMBD,
    "intermediate_size": 48,
    "num_hidden_layers": N_LAYER,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts_per_tok": TOP_K,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# What a family calls its own, beside the above.
FAMILIES = {
    "qwen3_moe": {"num_experts": N_EXPERT, "moe_intermediate_size": 16, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": N_EXPERT},
    "olmoe": {"num_experts": N_EXPERT},
    "gpt_oss": {"num_local_experts": N_EXPERT, "sliding_window": 32},
    "deepseek_v3": {
        "n_routed_experts": N_EXPERT,
        "n_shared_experts": 1,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
    },
    "granitemoe": {"num_local_experts": N_EXPERT},
}


def tiny(kind: str, seed: int = 0, **changes):
    """Return a model of a family with random weights; its biases are random too."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **{**SMALL, **FAMILIES.get(kind, {}), **changes})
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if "router" in name or ".gate." in name or "correction_bias" in name:
                value.normal_(0, 0.3)
    return model


class Tokenizer:
    """A token for each letter."""

    pad_token_id, eos_token_id, chat_template = 0, 2, None

    def __call__(self, text, **how):
        return {"input_ids": [3 + ord(letter) % (VOCABULARY - 3) for letter in text]}

    def decode(self, tokens, **how):
        return "".join(chr(int(token) + 32) for token in tokens)


def watched(model):
    """Return a list that fills with (router's name, ids) of each of its calls, by other hooks."""
    calls = []
    for name, module in model.named_modules():
        if name.endswith((".gate", ".router")):

            def keep(module, args, output, name=name):
                calls.append(SimpleNamespace(router=name, ids=output[2], weights=output[1]))

            module.register_forward_hook(keep)
    return calls
