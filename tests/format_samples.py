"""One small valid sample of every format, by the format's name; `test_formats_conformance` needs it.

A sample has a prompt and several decoded tokens at two or more layers, in the order of a trace.
"""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field

import engine_files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import route_trace_files
import server_files

from tracekit.formats import ImportOptions


@dataclass(frozen=True)
class Sample:
    """A file, or the files of a folder by name, and the options without which they are not read.

    `is_text`: lines of text, so that text put between them makes a hostile file. `has_decoded`: the
    format has more than prompts.
    """

    files: bytes | dict[str, bytes]
    options: ImportOptions = field(default_factory=ImportOptions)
    is_text: bool = True
    has_decoded: bool = True


def saved(write, *args, **named) -> bytes:
    """Return what a function writes to the file that it is given first."""
    file = io.BytesIO()
    write(file, *args, **named)
    return file.getvalue()


# A prompt of three tokens and four decoded ones, at two layers, of eight experts two.
EXPERTS = np.array([[[t % 7, 7], [(t + 3) % 7, (t + 1) % 7]] for t in range(7)], np.int16)

RUN = engine_files.run_of(EXPERTS, [([3], 4)], (0, 1), 8)
# Some formats have prompts of one token only, or nothing but prompts.
SHORT = engine_files.run_of(EXPERTS, [([1], 3), ([1], 2)], (0, 1), 8)
PROMPT = engine_files.run_of(EXPERTS, [([7], 0)], (0, 1), 8)

PHASES = ["prefill"] * 3 + ["decode"] * 4


def in_engine_order():
    """Yield token, layer and experts of each routing, in the order of a trace."""
    for tokens in ([0, 1, 2], [3], [4], [5], [6]):
        for layer in (0, 1):
            for token in tokens:
                yield token, layer, EXPERTS[token, layer].tolist()


def long_csv() -> bytes:
    lines = ["prompt,token,layer,slot,expert,weight,phase"]
    for token, layer, experts in in_engine_order():
        for slot, expert in enumerate(experts):
            weight = 0.7 - 0.4 * slot
            lines.append(f"a,{token},{layer},{slot},{expert},{weight:.1f},{PHASES[token]}")
    return "".join(f"{line}\n" for line in lines).encode()


def long_parquet() -> bytes:
    tokens, layers, experts = zip(*in_engine_order(), strict=True)
    phases = [PHASES[token] for token in tokens]
    columns = {"token": tokens, "layer": layers, "experts": experts, "phase": phases}
    return saved(lambda file: pq.write_table(pa.table(columns), file))


def json_lines(objects: Iterable[object]) -> bytes:
    """Return one line of JSON for each object."""
    return "".join(f"{json.dumps(each)}\n" for each in objects).encode()


def routing_lines() -> bytes:
    model = {"record_type": "metadata", "num_experts": 8, "experts_per_token": 2, "model_id": "m"}
    rows = [
        {"phase": PHASES[t], "token_idx": t, "layer_idx": n, "selected_ids": experts}
        for t, n, experts in in_engine_order()
    ]
    return json_lines([model, *({**row, "gate_weights": [0.5, 0.25]} for row in rows)])


def layer_expert() -> bytes:
    rows = [f"{layer},{expert}" for _, layer, experts in in_engine_order() for expert in experts]
    return "".join(f"{row}\n" for row in ["layer,expert", *rows]).encode()


SAMPLES: dict[str, Sample] = {
    "route_trace": Sample(
        route_trace_files.text(
            route_trace_files.turn(0) + route_trace_files.turn(1, decoded=3)
        ).encode()
    ),
    "npz": Sample(
        saved(
            np.savez,
            experts=EXPERTS,
            prompt_lengths=np.array([3]),
            lengths=np.array([7]),
            n_expert=8,
            expert_bytes=1000,
        ),
        is_text=False,
    ),
    "npy": Sample(saved(np.save, EXPERTS), is_text=False),
    "csv": Sample(long_csv()),
    "parquet": Sample(long_parquet(), is_text=False),
    "jsonl": Sample(routing_lines()),
    "layer-expert": Sample(layer_expert(), ImportOptions(top_k=2)),
    "vllm": Sample(server_files.lines([server_files.vllm_lists(EXPERTS, 3)] * 2)),
    "sglang": Sample(
        server_files.lines([server_files.sglang(EXPERTS, 3)] * 2),
        ImportOptions(n_layer=2, top_k=2),
    ),
    "megatron-server": Sample(server_files.lines([server_files.megatron(EXPERTS, 3)] * 2)),
    "sglang-recorder": Sample(
        server_files.recorder_file(
            [
                server_files.recorder_pass(4, EXPERTS[:3], [0, 1, 2], 1, [3]),
                *(
                    server_files.recorder_pass(p + 2, EXPERTS[p : p + 1], [p], 2)
                    for p in range(3, 7)
                ),
            ],
            np.tile(np.arange(8), (2, 1)),
        ),
        is_text=False,
    ),
    "megatron": Sample(
        server_files.router_trace([EXPERTS[:3], *EXPERTS[3:, None]], [0, 1])[
            "router_trace_rank0.jsonl"
        ]
    ),
    "colibri": Sample(engine_files.colibri(RUN)),
    "mbolt": Sample(engine_files.mbolt(RUN), is_text=False),
    "llama-positions": Sample(engine_files.llama_positions(RUN)),
    "llama-steps": Sample(engine_files.llama_steps(SHORT)),
    "llama-records": Sample(engine_files.llama_records(RUN), is_text=False),
    "expert-cache-log": Sample(engine_files.expert_cache_log(RUN)),
    "moe-beyond": Sample(engine_files.moe_beyond(PROMPT), has_decoded=False),
    "router-logits": Sample(
        engine_files.safetensors(engine_files.router_logits(PROMPT)),
        ImportOptions(top_k=2),
        is_text=False,
        has_decoded=False,
    ),
    "glm52-export": Sample(engine_files.glm52_export(RUN), is_text=False),
    "routing-atlas": Sample(engine_files.routing_atlas(PROMPT), has_decoded=False),
    "flame-moe": Sample(engine_files.flame_moe(PROMPT), is_text=False, has_decoded=False),
    "layer-pairs": Sample(engine_files.layer_pairs(RUN), ImportOptions(top_k=2), is_text=False),
}
