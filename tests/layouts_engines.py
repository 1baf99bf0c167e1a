"""Logs of local engines, and what research publishes."""

import csv
import io
import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from drawn_run import DECODE, PREFILL, Drawn
from engine_files import safetensors
from layouts import chunks, layout
from torch_writer import T, saved_by_torch

PHASES = ("prefill", "decode")


def _write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _prompt_lengths(run: Drawn) -> np.ndarray:
    """Return the length of the prompt of each token's turn."""
    return np.array([request.n_prompt for request in run.requests()])[run.turn]


@layout("colibri", order="ranked", holds=("weights",), precision=6e-5)
def _(run: Drawn, folder: Path) -> Path:
    lines = []
    for call, (place, layer, rows) in enumerate(run.calls()):
        for row, token in enumerate(rows):
            chosen = zip(run.experts[token, place], run.weights[token, place], strict=True)
            pairs = " ".join(f"{expert}:{weight:.4f}" for expert, weight in chosen)
            lines.append(f"{call} {row} {layer} {pairs}")
    return _write(folder / "route_trace.txt", lines)


@layout("llama.cpp positions", view=lambda run: run.pruned(), order="ranked")
def _(run: Drawn, folder: Path) -> Path:
    run = run.pruned()
    lines, before = [], _prompt_lengths(run)
    for place, layer, rows in run.calls():
        for at, token in enumerate(rows):
            # A batch of a prompt is counted from its end: its first position, then up.
            position = run.step[token] - before[token]
            if run.phase[token] == PREFILL:
                position = -(run.step[rows[0]] + len(rows)) + at
            lines.append(",".join(map(str, (position, layer, *run.experts[token, place]))))
    return _write(folder / "moe_trace.csv", lines)


@layout("llama.cpp phases and ranks", options=chunks, order="ranked")
def _(run: Drawn, folder: Path) -> Path:
    lines = ["phase,token,layer,rank,expert"]
    for place, layer, rows in run.calls():
        for token in rows:
            for rank, expert in enumerate(run.experts[token, place]):
                place_of = f"{PHASES[run.phase[token]]},{run.step[token]},{layer}"
                lines.append(f"{place_of},{rank},{expert}")
    return _write(folder / "moe_trace.csv", lines)


def _generated(run: Drawn) -> Drawn:
    """Return the generated tokens, counted from 0 in each turn."""
    counted = run.step - _prompt_lengths(run)
    found = run.decoded()
    found.step[:] = counted[run.phase == DECODE]
    return found


@layout("llama.cpp steps", view=_generated, order="ranked")
def _(run: Drawn, folder: Path) -> Path:
    lines, step = [], run.step - _prompt_lengths(run)
    for place, layer, (token, *_) in run.calls():
        if run.phase[token] == DECODE:
            chosen = " ".join(map(str, run.experts[token, place]))
            lines.append(f"{run.turn[token]} {step[token]} {layer} {chosen}")
    return _write(folder / "moe_trace.txt", lines)


def _records(run: Drawn, order: tuple[str, str, str]) -> bytes:
    found = []
    for place, layer, rows in run.calls():
        numbers = {"layer": layer, "n": len(rows), "k": run.k}
        found.append(struct.pack("<3i", *(numbers[name] for name in order)))
        found.append(run.experts[rows, place].astype("<i4").tobytes())
    return b"".join(found)


@layout("llama.cpp records", view=lambda run: run.pruned(), order="ranked")
def _(run: Drawn, folder: Path) -> Path:
    (folder / "moe.bin").write_bytes(_records(run.pruned(), ("layer", "n", "k")))
    return folder / "moe.bin"


@layout("mbolt", view=lambda run: run.pruned(), order="ranked")
def _(run: Drawn, folder: Path) -> Path:
    header = struct.pack("<3I", 0x544C424D, 1, run.n_expert)
    (folder / "route.bin").write_bytes(header + _records(run.pruned(), ("layer", "k", "n")))
    return folder / "route.bin"


@layout("layer,expert of llama.cpp", options=lambda run: {"top_k": run.k})
def _(run: Drawn, folder: Path) -> Path:
    lines = [
        f"{layer},{expert}"
        for place, layer, rows in run.calls()
        for expert in run.experts[rows, place].ravel()
    ]
    return _write(folder / "moe_trace.csv", lines)


@layout("kimi-k3", options=lambda run: {"top_k": run.k})
def _(run: Drawn, folder: Path) -> Path:
    pairs = [
        (layer, expert)
        for place, layer, rows in run.calls()
        for expert in run.experts[rows, place].ravel()
    ]
    (folder / "expert_trace.bin").write_bytes(np.array(pairs, "<i4").tobytes())
    return folder / "expert_trace.bin"


def _decoded_after_prompts(run: Drawn) -> Drawn:
    """Return the generated tokens, which keep their places after the prompts that are lost."""
    found = run.decoded()
    found.step[:] = run.step[run.phase == DECODE]
    return found


@layout("expert-cache log", view=_decoded_after_prompts, order="ranked")
def _(run: Drawn, folder: Path) -> Path:
    lines = []
    for place, layer, rows in run.calls():
        chosen = run.experts[rows, place].ravel().tolist()
        shown = chosen if len(rows) == 1 else sorted(set(chosen))
        number = run.passes[rows[0]]
        lines.append(f"{number} {layer} {len(rows)} {' '.join(map(str, shown))}")
    return _write(folder / "trace.txt", lines)


# ---- research -----------------------------------------------------------------------------------

TEXTS = ('Ġ",', "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "a,b", "Ċ", "[1, 2]", '"', "\n")


@layout("MoE-Beyond", view=lambda run: run.prompts(), options=chunks)
def _(run: Drawn, folder: Path) -> Path:
    for request in run.requests():
        file = io.StringIO(newline="")
        table = csv.writer(file)
        header = ["Layer ID", "Batch Number", "Token", "Activated Expert IDs", "Hidden"]
        table.writerow(header)
        tokens = range(request.rows.start, request.rows.start + request.n_prompt)
        for place, layer in enumerate(run.layers):
            for token in tokens:
                ids = run.experts[token, place].tolist()
                table.writerow([layer, 0, TEXTS[token % len(TEXTS)], ids, [0.5, -1.0]])
        path = folder / f"prompt_{request.turn + 1}_data.csv"
        path.write_text(file.getvalue(), encoding="utf-8", newline="")
    return folder


@layout(
    "FLAME-MoE",
    view=lambda run: run.one_prompt(),
    options=chunks,
    order="ranked",
    holds=("weights",),
)
def _(run: Drawn, folder: Path) -> Path:
    actives = folder / "actives" / "iter_0540"
    actives.mkdir(parents=True)
    for place, layer in enumerate(run.layers):
        scores = run.weights[:, place].astype(np.float16)
        columns = {
            "scores": pa.array(list(scores), pa.list_(pa.float16())),
            "indices": pa.array(run.experts[:, place].tolist(), pa.list_(pa.int16())),
        }
        pq.write_table(pa.table(columns), actives / f"layer_{layer:02}.parquet")
    (folder / "samples").mkdir()
    ids = pa.table({"token_id": pa.array(run.token, pa.int32())})
    pq.write_table(ids, folder / "samples" / "000.parquet")
    return folder


@layout("GLM-5.2 export", options=chunks, order="ranked")
def _(run: Drawn, folder: Path) -> Path:
    prompts = [
        {
            "category": "math",
            "start_row": request.rows.start,
            "prefill_rows": request.n_prompt,
            "decode_step_rows": request.n_rows - request.n_prompt,
            "end_row": request.rows.stop,
        }
        for request in run.requests()
    ]
    layers = {
        str(layer): {"executed_topk": run.experts[:, place].tolist()}
        for place, layer in enumerate(run.layers)
    }
    export = {
        "schema": "glm52-routing-trace-export/v2",
        "routing": {"n_expert_per_layer": run.n_expert, "k": run.k},
        "conditional": {"prompts": prompts},
        "layers": layers,
    }
    (folder / "trace.json").write_text(json.dumps(export))
    return folder / "trace.json"


@layout(
    "moe-routing-atlas",
    view=lambda run: run.prompts(),
    options=chunks,
    order="ranked",
    holds=("weights",),
)
def _(run: Drawn, folder: Path) -> Path:
    lines = []
    for request in run.requests():
        activations = [
            {
                "layer": layer,
                "token_idx": at,
                "expert_idx": int(expert),
                "gate_weight": float(weight),
                "output_norm": 0.0,
            }
            for place, layer in enumerate(run.layers)
            for at in range(request.n_prompt)
            for expert, weight in zip(
                run.experts[request.rows.start + at, place],
                run.weights[request.rows.start + at, place],
                strict=True,
            )
        ]
        prompt = {"model_id": "tiny", "num_layers": len(run.layers), "num_experts": run.n_expert}
        lines.append(
            json.dumps({**prompt, "top_k": run.k, "text": "a", "activations": activations})
        )
    return _write(folder / "traces.jsonl", lines)


def _of_prompt(run: Drawn, name: str) -> list[tuple[int, dict[str, np.ndarray]]]:
    """Return the number of each prompt, and its router logits by layer."""
    return [
        (
            request.turn,
            {
                name.format(layer): np.ascontiguousarray(run.logits[request.rows, place])
                for place, layer in enumerate(run.layers)
            },
        )
        for request in run.prompts().requests()
    ]


def _logits(run: Drawn) -> dict:
    return {"top_k": run.k, **chunks(run)}


OF_LOGITS = {"options": _logits, "order": "ranked", "holds": ("logits",)}


@layout("router logits, npz", view=lambda run: run.prompts(), **OF_LOGITS)
def _(run: Drawn, folder: Path) -> list[Path]:
    run = run.prompts()
    paths = []
    for turn, arrays in _of_prompt(run, "layer_{}"):
        paths.append(folder / f"logits_{turn}.npz")
        np.savez(paths[-1], **arrays)
    return paths


@layout("router logits, safetensors", view=lambda run: run.prompts(), **OF_LOGITS)
def _(run: Drawn, folder: Path) -> list[Path]:
    run = run.prompts()
    paths = []
    for turn, arrays in _of_prompt(run, "router_logits.{}"):
        paths.append(folder / f"logits_{turn}.safetensors")
        paths[-1].write_bytes(safetensors(arrays))
    return paths


@layout("router logits, .pt", view=lambda run: run.prompts().counted_layers(), **OF_LOGITS)
def _(run: Drawn, folder: Path) -> list[Path]:
    run = run.prompts()
    paths = []
    for turn, arrays in _of_prompt(run, "{}"):
        paths.append(folder / f"logits_{turn}.pt")
        value = tuple(T(each, bf16=bool(turn % 2)) for each in arrays.values())
        paths[-1].write_bytes(saved_by_torch(value, top=f"logits_{turn}"))
    return paths
