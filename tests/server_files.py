"""Answers of servers and their recordings, as the servers write them, for tests."""

import base64
import io
import json

import numpy as np
from torch_writer import T, saved_by_torch


def all_layers(experts: np.ndarray, layers: list[int], n_layer: int, none: int = 0) -> np.ndarray:
    """Return experts [tokens, MoE layers, k] along all layers of a model."""
    grid = np.full((len(experts), n_layer, experts.shape[2]), none, np.int64)
    grid[:, layers] = experts
    return grid


def npy64(experts: np.ndarray) -> str:
    file = io.BytesIO()
    np.save(file, experts.astype(np.uint8 if experts.max(initial=0) < 256 else np.uint16))
    return base64.b64encode(file.getvalue()).decode()


def usage(n_prompt: int, n_output: int) -> dict:
    total = n_prompt + n_output
    return {"prompt_tokens": n_prompt, "completion_tokens": n_output, "total_tokens": total}


def vllm(experts: np.ndarray, n_prompt: int, **more: object) -> dict:
    """Return a response of vLLM from 0.22 on."""
    choice = {"index": 0, "text": ' {"a": 1}', "routed_experts": npy64(experts)}
    counts = usage(n_prompt, len(experts) + 1 - n_prompt)
    return {"id": "cmpl-1", "model": "m", "choices": [choice], "usage": counts, **more}


def vllm_lists(experts: np.ndarray, n_prompt: int) -> dict:
    """Return a response of vLLM 0.21."""
    prompt, generated = experts[:n_prompt].tolist(), experts[n_prompt:].tolist()
    choice = {"index": 0, "message": {"content": "a"}, "routed_experts": generated}
    return {
        "object": "chat.completion",
        "model": "m",
        "prompt_routed_experts": prompt,
        "choices": [choice],
        "usage": usage(n_prompt, len(generated) + 1),
    }


def sglang(experts: np.ndarray, n_prompt: int) -> dict:
    """Return a response of SGLang's /generate; experts along all layers."""
    n_output = len(experts) + 1 - n_prompt
    raw = np.ascontiguousarray(experts, "<i4").tobytes()
    counts = {"prompt_tokens": n_prompt, "completion_tokens": n_output}
    meta = {"id": "x", **counts, "routed_experts": base64.b64encode(raw).decode()}
    return {"text": "a", "output_ids": [*range(20, 20 + n_output)], "meta_info": meta}


def megatron(experts: np.ndarray, n_prompt: int) -> dict:
    """Return a response of Megatron's server."""
    choice = {
        "index": 0,
        "moe_topk_indices": experts.tolist(),
        "prompt_moe_topk_indices": experts[:n_prompt].tolist(),
    }
    return {"id": "x", "model": "m", "choices": [choice]}


def lines(values: list[dict]) -> bytes:
    return "".join(f"{json.dumps(value)}\n" for value in values).encode()


# ---- SGLang's recorder --------------------------------------------------------------------------


def recorder_pass(
    number: int,
    experts: np.ndarray,
    positions: list[int],
    mode: int,
    lengths: list[int] | None = None,
    rank: int = 0,
) -> dict:
    """Return a record; experts [tokens, all layers, k] are the physical ones, -1 where none."""
    n_tokens, n_layer, k = experts.shape
    slots = np.full((n_layer, n_tokens, max(8, k)), -1, np.int32)
    slots[:, :, :k] = experts.transpose(1, 0, 2)
    return {
        "forward_pass_id": number,
        "rank": rank,
        "gatherer_key": "primary",
        "input_ids": [100 + p for p in positions],
        "positions": positions,
        "extend_seq_lens": lengths,
        "forward_mode": mode,
        "topk_ids_of_layer": T(slots),
        "misc_objects": [],
    }


def recorder_file(records: list[dict], physical_to_logical: np.ndarray) -> bytes:
    table = T(np.ascontiguousarray(physical_to_logical, np.int64))
    return saved_by_torch({"records": records, "last_physical_to_logical_map": table})


# ---- Megatron's router trace --------------------------------------------------------------------


def bf16(values: np.ndarray) -> bytes:
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def router_trace(
    steps: list[np.ndarray],
    layers: list[int],
    rank: int = 0,
    logits: list[np.ndarray] | None = None,
    hidden: list[np.ndarray] | None = None,
) -> dict[str, bytes]:
    """Return the files of one rank: experts [tokens, layers, k] of each step, and what is beside."""
    rows = []
    beside = {"hs": b"", "logit": b""}
    for step, experts in enumerate(steps):
        for place, layer in enumerate(layers):
            row = {
                "step": step,
                "stage": "pre_dispatch",
                "block": "decoder",
                "layer": layer,
                "rank": rank,
                "num_tokens": len(experts),
                "topk": experts.shape[2],
            }
            for key, values in (("hs", hidden), ("logit", logits)):
                if values is not None:
                    raw = bf16(values[step][:, place])
                    row[f"{key}_offset"], row[f"{key}_bytes"] = len(beside[key]), len(raw)
                    row[f"{key}_shape"] = list(values[step][:, place].shape)
                    beside[key] += raw
            rows.append({**row, "top_indices": np.sort(experts[:, place], -1).tolist()})
    files = {f"router_trace_rank{rank}.jsonl": lines(rows)}
    if hidden is not None:
        files[f"hidden_states_rank{rank}.bin"] = beside["hs"]
    if logits is not None:
        files[f"logits_rank{rank}.bin"] = beside["logit"]
    return files


def router_state(routers: dict[int, np.ndarray], bias: np.ndarray | None = None) -> bytes:
    """Return router_state_rank*.pt."""
    more = {"score_function": "sigmoid", "topk": 2}
    return saved_by_torch(
        {
            layer: {
                "weight": T(np.asarray(weight, np.float32)),
                "expert_bias": None if bias is None else T(np.asarray(bias, np.float32)),
                **more,
            }
            for layer, weight in routers.items()
        }
    )
