"""How families of models route, by the ``model_type`` of their config.json.

Only what the families' own code says is listed; of another family nothing is assumed.
"""

_SOFTMAX = (
    "qwen2_moe",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_vl_moe_text",
    "qwen3_5_moe_text",
    "mixtral",
    "olmoe",
    "deepseek_v2",
    "phimoe",
    "jamba",
    "dbrx",
    "ernie4_5_moe",
    "hunyuan_v1_moe",
)
_SIGMOID = ("deepseek_v3", "kimi_k2", "glm4_moe", "dots1", "lfm2_moe", "minimax_m2")
# A softmax after the selection, or a function that keeps the order of the logits.
_LOGITS = ("gpt_oss", "granitemoe", "granitemoeshared", "granitemoehybrid", "llama4_text")

GATINGS = {
    **dict.fromkeys(_SOFTMAX, "softmax"),
    **dict.fromkeys(_SIGMOID, "sigmoid"),
    **dict.fromkeys(_LOGITS, "logits"),
}

# The RMS norm (x / rms · weight) whose product the router multiplies, by the name of its tensor.
NORMS = {
    **dict.fromkeys(
        (
            "qwen2_moe",
            "qwen3_moe",
            "mixtral",
            "olmoe",
            "deepseek_v2",
            "deepseek_v3",
            "kimi_k2",
            "glm4_moe",
            "dots1",
            "ernie4_5_moe",
            "hunyuan_v1_moe",
            "gpt_oss",
            "granitemoe",
            "granitemoeshared",
            "granitemoehybrid",
            "llama4_text",
        ),
        "post_attention_layernorm.weight",
    ),
    "lfm2_moe": "ffn_norm.weight",
}
