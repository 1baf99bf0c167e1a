"""What servers answer and record: vLLM, SGLang, Megatron-LM."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from drawn_run import DECODE, Drawn, Request
from layouts import chunks, layout
from layouts_universal import write_lines
from torch_writer import T, saved_by_torch


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _usage(n_prompt: int, n_output: int) -> dict[str, int]:
    total = n_prompt + n_output
    return {"prompt_tokens": n_prompt, "completion_tokens": n_output, "total_tokens": total}


def _response(run: Drawn, request: Request, choice: dict, is_chat: bool = False) -> dict:
    """Return the response of an OpenAI endpoint around a choice."""
    says = {"message": {"role": "assistant", "content": "a{"}} if is_chat else {"text": ' "a'}
    return {
        "id": f"cmpl-{request.turn}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 1,
        "model": "tiny/moe",
        "choices": [{"index": 0, **says, "logprobs": None, "finish_reason": "length", **choice}],
        "usage": _usage(request.n_prompt, request.n_output),
    }


def _first(run: Drawn) -> Drawn:
    return run.taken(run.turn == 0)


# ---- vLLM ---------------------------------------------------------------------------------------


def _npy(experts: np.ndarray, n_expert: int) -> str:
    file = io.BytesIO()
    np.save(file, experts.astype(np.uint8 if n_expert <= 256 else np.uint16))
    return _base64(file.getvalue())


def _vllm(run: Drawn, request: Request) -> dict:
    """Return a response of vLLM 0.22 or later, with experts along all layers."""
    experts = run.all_layers()[request.rows]
    choice = {"routed_experts": _npy(experts, run.n_expert)}
    return _response(run, request, choice, is_chat=bool(request.turn % 2))


def _vllm_of_moe_layers(run: Drawn, request: Request) -> dict:
    """Return one with the layers that have experts, as vLLM's documentation has it."""
    choice = {"routed_experts": _npy(run.experts[request.rows], run.n_expert)}
    return _response(run, request, choice)


def _vllm_with_ids(run: Drawn, request: Request) -> dict:
    """Return one with the ids of its tokens, of more than 256 experts, and without usage."""
    token = run.token[request.rows].tolist()
    choice = {
        "prompt_token_ids": token[: request.n_prompt],
        "token_ids": [*token[request.n_prompt :], 3],
        "routed_experts": _npy(run.all_layers()[request.rows], 300),
    }
    response = _response(run, request, choice)
    del response["usage"]
    return response


def _vllm_021(run: Drawn, request: Request) -> dict:
    experts = run.experts[request.rows].tolist()
    choice = {"routed_experts": experts[request.n_prompt :]}
    response = _response(run, request, choice, is_chat=bool(request.turn % 2))
    return {**response, "prompt_routed_experts": experts[: request.n_prompt]}


def _from_the_third(run: Drawn) -> Drawn:
    """Return each request without its first two tokens, and each prompt as one pass."""
    return run.taken(run.step >= 2).whole_prompts()


def _vllm_from_the_third(run: Drawn, request: Request) -> dict:
    choice = {"routed_experts": _npy(run.all_layers()[request.rows][2:], run.n_expert)}
    return _response(run, request, choice)


Answer = Callable[[Drawn, Request], dict]


def write_one(answer: Answer, run: Drawn, path: Path) -> Path:
    path.write_text(json.dumps(answer(run, run.requests()[0])))
    return path


def write_all(answer: Answer, run: Drawn, path: Path) -> Path:
    return write_lines(path, [answer(run, request) for request in run.requests()])


def write_array(answer: Answer, run: Drawn, path: Path) -> Path:
    path.write_text(json.dumps([answer(run, request) for request in run.requests()], indent=1))
    return path


def _register(name: str, answer: Answer, **more: object) -> None:
    for form, write in (("a line each", write_all), ("an array", write_array)):

        @layout(f"{name}, {form}", **more)
        def _(run: Drawn, folder: Path, write: Callable = write) -> Path:
            return write(answer, run, folder / "answers.json")

    view = more.pop("view", lambda run: run)

    @layout(f"{name}, one", view=lambda run: view(_first(run)), **more)
    def _(run: Drawn, folder: Path) -> Path:
        return write_one(answer, run, folder / "answer")


_register("vllm", _vllm, options=chunks)
_register(
    "vllm of MoE layers", _vllm_of_moe_layers, options=chunks, view=lambda run: run.counted_layers()
)
_register("vllm with ids", _vllm_with_ids, options=chunks, holds=("token",))
_register("vllm from the third token", _vllm_from_the_third, view=_from_the_third)
_register("vllm 0.21", _vllm_021, options=chunks, view=lambda run: run.counted_layers())

# ---- SGLang's answers ---------------------------------------------------------------------------


def _int32(run: Drawn, request: Request) -> str:
    return _base64(np.ascontiguousarray(run.all_layers()[request.rows], "<i4").tobytes())


def _sglang(run: Drawn, request: Request) -> dict:
    meta = {
        "id": "x",
        **_usage(request.n_prompt, request.n_output),
        "cached_tokens": 0,
        "routed_experts": _int32(run, request),
        "finish_reason": {"type": "length", "length": request.n_output},
    }
    return {"text": " a", "output_ids": [5] * request.n_output, "meta_info": meta}


def _sglang_openai(run: Drawn, request: Request) -> dict:
    response = _response(run, request, {}, is_chat=bool(request.turn % 2))
    return {**response, "sglext": {"routed_experts": _int32(run, request)}}


def _sizes(run: Drawn) -> dict:
    return {"n_layer": run.n_layer, "top_k": run.k, **chunks(run)}


_register("sglang /generate", _sglang, options=_sizes)
_register("sglang, OpenAI's endpoints", _sglang_openai, options=_sizes)

# ---- SGLang's recorder --------------------------------------------------------------------------

EXTEND, DECODED = 1, 2


def physical(run: Drawn) -> tuple[np.ndarray, np.ndarray]:
    """Return a map [layers, physical] with copies of experts, and the physical experts of a run."""
    rng = np.random.default_rng(2)
    n_expert, n_more = run.n_expert, run.n_expert // 4
    to_logical = np.stack(
        [
            rng.permutation(np.append(np.arange(n_expert), rng.choice(n_expert, n_more)))
            for _ in range(run.n_layer)
        ]
    )
    experts = np.empty_like(run.experts)
    for place, layer in enumerate(run.layers):
        # Of an expert and its copy, either the first or the last in the order of the map.
        first = np.zeros(n_expert, np.int64)
        last = first.copy()
        last[to_logical[layer]] = np.arange(len(to_logical[layer]))
        first[to_logical[layer][::-1]] = np.arange(len(to_logical[layer]))[::-1]
        takes_last = rng.random(run.experts[:, place].shape) < 0.5
        chosen = run.experts[:, place]
        experts[:, place] = np.where(takes_last, last[chosen], first[chosen])
    return to_logical, experts


def records_of(run: Drawn, experts: np.ndarray, rank: int) -> list[dict]:
    """Return a record for each pass."""
    records = []
    for number, rows in enumerate(run.each_pass(), 17):
        slots = np.full((run.n_layer, len(rows), 8), -1, np.int32)
        slots[list(run.layers), :, : run.k] = experts[rows].swapaxes(0, 1)
        decodes = run.phase[rows[0]] == DECODE
        records.append(
            {
                "forward_pass_id": number,
                "rank": rank,
                "gatherer_key": "primary",
                "input_ids": run.token[rows].tolist(),
                "positions": run.step[rows].tolist(),
                "extend_seq_lens": None if decodes else [len(rows)],
                "forward_mode": DECODED if decodes else EXTEND,
                "topk_ids_of_layer": T(slots),
                "misc_objects": [],
            }
        )
    return records


@layout("sglang recorder, two ranks", holds=("token",))
def _(run: Drawn, folder: Path) -> Path:
    to_logical, experts = physical(run)
    for rank in range(2):
        records = records_of(run, experts, rank)
        half = len(records) // 2
        for time, part in (("1760000000.5", records[:half]), ("1760000900.25", records[half:])):
            value = {"records": part, "last_physical_to_logical_map": T(to_logical)}
            path = folder / f"expert_distribution_recorder_{time}_{rank}.pt"
            path.write_bytes(saved_by_torch(value))
    return folder


@layout("sglang recorder, ranks with other layers", holds=("token",))
def _(run: Drawn, folder: Path) -> list[Path]:
    table = np.tile(np.arange(run.n_expert), (run.n_layer, 1))
    paths = []
    for rank in range(2):
        records = records_of(run, run.experts, rank)
        middle = run.n_layer // 2
        for record in records:
            slots = record["topk_ids_of_layer"].array
            slots[slice(middle, None) if rank == 0 else slice(0, middle)] = -1
        paths.append(folder / f"expert_distribution_recorder_1_{rank}.pt")
        value = {"records": records, "last_physical_to_logical_map": T(table)}
        paths[-1].write_bytes(saved_by_torch(value))
    return paths[::-1]


# ---- Megatron-LM --------------------------------------------------------------------------------


def _bf16(values: np.ndarray) -> bytes:
    return (np.ascontiguousarray(values, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()


def router_trace(
    run: Drawn,
    folder: Path,
    rank: int,
    parts: dict[int, np.ndarray] | None = None,
    places: range | None = None,
    first_layer: int = 0,
    sidecars: bool = False,
) -> None:
    """Write the files of a rank.

    `parts`: of each pass, the rows that this rank computes; `places`: the layers of its stage, which it
    numbers from `first_layer` of the model on.
    """
    lines = []
    beside: dict[str, bytearray] = {"hs": bytearray(), "logit": bytearray()}
    values = {"hs": run.gate_input, "logit": run.logits}
    for step, rows in enumerate(run.each_pass()):
        mine = rows if parts is None else parts[step]
        for place in range(len(run.layers)) if places is None else places:
            line = {
                "step": step,
                "stage": "pre_dispatch",
                "block": "decoder",
                "layer": run.layers[place] - first_layer,
                "rank": rank,
                "num_tokens": len(mine),
                "topk": run.k,
            }
            for name, of_all in values.items() if sidecars else ():
                raw = _bf16(of_all[mine, place])
                shape = [len(mine), of_all.shape[2]]
                places_of = (len(beside[name]), len(raw), shape)
                keys = (f"{name}_offset", f"{name}_bytes", f"{name}_shape")
                line |= dict(zip(keys, places_of, strict=True))
                beside[name] += raw
            lines.append({**line, "top_indices": np.sort(run.experts[mine, place]).tolist()})
    write_lines(folder / f"router_trace_rank{rank}.jsonl", lines)
    if sidecars:
        (folder / f"hidden_states_rank{rank}.bin").write_bytes(beside["hs"])
        (folder / f"logits_rank{rank}.bin").write_bytes(beside["logit"])


def routers(run: Drawn) -> dict[int, np.ndarray]:
    """Return a router [E, H] of each layer."""
    rng = np.random.default_rng(3)
    shape = run.n_expert, run.gate_input.shape[2]
    return {layer: rng.normal(size=shape).astype(np.float32) for layer in run.layers}


def router_state(matrices: dict[int, np.ndarray], k: int) -> bytes:
    more = {"expert_bias": None, "score_function": "softmax", "topk": k}
    return saved_by_torch({n: {"weight": T(each), **more} for n, each in matrices.items()})


@layout("megatron with sidecars", order="ranked", holds=("logits", "gate_input"))
def _(run: Drawn, folder: Path) -> Path:
    for rank in range(2):  # of one data-parallel group, so that they repeat each other
        router_trace(run, folder, rank, sidecars=True)
        state = router_state(routers(run), run.k)
        (folder / f"router_state_rank{rank}.pt").write_bytes(state)
    return folder


def _stages(run: Drawn, folder: Path, sidecars: bool) -> None:
    """Write two stages of a pipeline, each of two ranks that share the tokens."""
    middle = run.n_layer // 2
    matrices = routers(run)
    for stage, first_layer in enumerate((0, middle)):
        places = [n for n, layer in enumerate(run.layers) if (layer >= middle) == stage]
        mine = range(places[0], places[-1] + 1)
        for half in range(2):
            rank = 2 * stage + half
            parts = {}
            for step, rows in enumerate(run.each_pass()):
                cut = (len(rows) + 1) // 2
                parts[step] = rows[cut:] if half else rows[:cut]
            router_trace(run, folder, rank, parts, mine, first_layer, sidecars)
            if sidecars:
                of_stage = {run.layers[n] - first_layer: matrices[run.layers[n]] for n in mine}
                state = router_state(of_stage, run.k)
                (folder / f"router_state_rank{rank}.pt").write_bytes(state)


@layout(
    "megatron, stages told by --n-layer",
    view=lambda run: run.by_id(),
    options=lambda run: {"n_layer": run.n_layer},
    order="sorted",
)
def _(run: Drawn, folder: Path) -> Path:
    _stages(run, folder, sidecars=False)
    return folder


@layout("megatron, stages told by routers", order="ranked", holds=("logits", "gate_input"))
def _(run: Drawn, folder: Path) -> list[Path]:
    _stages(run, folder, sidecars=True)
    return sorted(folder.glob("*.jsonl"))[::-1]


def _megatron_server(run: Drawn, request: Request) -> dict:
    experts = run.experts[request.rows].tolist()
    prompt = experts[: request.n_prompt]
    choice = {"moe_topk_indices": experts, "prompt_moe_topk_indices": prompt}
    return _response(run, request, choice)


_register(
    "megatron server", _megatron_server, options=chunks, view=lambda run: run.counted_layers()
)
