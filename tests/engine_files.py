"""Runs of local engines, and the files in which each of them would log the same run.

`Run.routings` is what every reader must give back, in plain Python that shares nothing with them.
"""

import csv
import io
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace import Trace

MBOLT_MAGIC = 0x544C424D


@dataclass(frozen=True)
class Pass:
    """A pass: its turn, its first step and that of the turn's first decoded token, its rows.

    `tokens` are rows of `Run.experts`.
    """

    number: int
    turn: int
    step: int
    prompt: int
    is_prompt: bool
    tokens: range


@dataclass(frozen=True)
class Run:
    """What an engine computed.

    `experts` is [tokens, layers, k], `layers` the model's numbers, `passes` in the order they ran.
    With `is_pruned` the last layer of a prompt's last pass has only the row of its last token.
    """

    experts: np.ndarray
    weights: np.ndarray
    layers: tuple[int, ...]
    passes: tuple[Pass, ...]
    n_expert: int
    is_pruned: bool = False

    def calls(self) -> Iterator[tuple[Pass, int, range]]:
        """Yield pass, place of the layer and tokens of each call of a layer."""
        for each in self.passes:
            for place in range(len(self.layers)):
                is_last = self.is_pruned and each.is_prompt and place == len(self.layers) - 1
                yield each, place, each.tokens[-1:] if is_last else each.tokens

    def routings(self, only: str = "") -> list[tuple]:
        """Return turn, pass, is decode, step, layer and experts of each; `only` the decoded ones."""
        found = []
        left_out = 0
        for each, place, tokens in self.calls():
            if only == "decoded" and each.is_prompt:
                left_out += place == 0
                continue
            for token in tokens:
                step = each.step + token - each.tokens[0]
                place_of = (each.turn, each.number - left_out, not each.is_prompt, step)
                chosen = tuple(self.experts[token, place].tolist())
                found.append((*place_of, self.layers[place], chosen))
        return found


def run_of(
    experts: np.ndarray,
    prompts: list[tuple[list[int], int]],
    layers: tuple[int, ...],
    n_expert: int,
    is_pruned: bool = False,
) -> Run:
    """Return a run of turns, each with the lengths of its prompt's passes and its decoded tokens."""
    passes, token = [], 0
    for turn, (chunks, n_decoded) in enumerate(prompts):
        start = token
        for size in [*chunks, *[1] * n_decoded]:
            is_prompt = token - start < sum(chunks)
            tokens = range(token, token + size)
            passes.append(Pass(len(passes), turn, token - start, sum(chunks), is_prompt, tokens))
            token += size
    assert token == len(experts)
    ranks = np.arange(experts.shape[2], 0, -1, dtype=np.float32)
    weights = np.broadcast_to(ranks / ranks.sum(), experts.shape)
    return Run(experts, weights, layers, tuple(passes), n_expert, is_pruned)


def large_run(prompts: list[tuple[list[int], int]], is_pruned: bool = False, seed: int = 0) -> Run:
    """Return a run of a model with 60 layers, three of them dense, and 8 of 256 experts."""
    rng = np.random.default_rng(seed)
    n_tokens = sum(sum(chunks) + n_decoded for chunks, n_decoded in prompts)
    layers = tuple(range(3, 60))
    first = rng.integers(0, 256, (n_tokens, len(layers), 1))
    stride = rng.integers(1, 32, first.shape)
    experts = (first + stride * np.arange(8)) % 256
    return run_of(experts, prompts, layers, 256, is_pruned)


def routings_of(trace: Trace) -> list[tuple]:
    """Return the routings of a trace as `Run.routings` has them."""
    columns = ("turn", "pass", "phase", "step", "layer")
    rows = trace.routing([*columns, "experts"])
    experts = map(tuple, rows["experts"].tolist())
    return [
        (turn, number, bool(phase), step, layer, chosen)
        for turn, number, phase, step, layer, chosen in zip(
            *(rows[name].tolist() for name in columns), experts, strict=True
        )
    ]


# ---- files --------------------------------------------------------------------------------------


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def colibri(run: Run) -> bytes:
    """Write what ``ROUTE_TRACE`` logs."""
    lines = []
    for call, (_, place, tokens) in enumerate(run.calls()):
        for row, token in enumerate(tokens):
            pairs = zip(run.experts[token, place], run.weights[token, place], strict=True)
            experts = " ".join(f"{expert}:{weight:.4f}" for expert, weight in pairs)
            lines.append(f"{call} {row} {run.layers[place]} {experts}")
    return _lines(lines)


def llama_positions(run: Run) -> bytes:
    """Write positions as the tool does: of a prompt, minus the tokens before the batch and from the end."""
    lines = []
    for each, place, tokens in run.calls():
        for row, token in enumerate(tokens):
            position = (
                -(each.step + len(tokens) - row) if each.is_prompt else each.step - each.prompt
            )
            experts = ",".join(map(str, run.experts[token, place]))
            lines.append(f"{position},{run.layers[place]},{experts}")
    return _lines(lines)


def llama_steps(run: Run) -> bytes:
    """Write the passes of one token: a prompt's has the step -1."""
    lines = []
    for each, place, tokens in run.calls():
        if len(tokens) == 1 == len(each.tokens):
            step = -1 if each.is_prompt else each.step - each.prompt
            experts = " ".join(map(str, run.experts[tokens[0], place]))
            lines.append(f"{each.turn} {step} {run.layers[place]} {experts}")
    return _lines(lines)


def expert_cache_log(run: Run) -> bytes:
    """Write the experts of a call of one token, and the distinct ones of another."""
    lines = []
    for each, place, tokens in run.calls():
        chosen = run.experts[list(tokens), place].reshape(-1).tolist()
        shown = chosen if len(tokens) == 1 else sorted(set(chosen))
        place_of = f"{each.number} {run.layers[place]} {len(tokens)}"
        lines.append(f"{place_of} {' '.join(map(str, shown))}")
    return _lines(lines)


def _records(run: Run, order: tuple[str, str, str]) -> bytes:
    records = []
    for _, place, tokens in run.calls():
        experts = run.experts[list(tokens), place].astype("<i4")
        sizes = {"layer": run.layers[place], "n_tokens": len(tokens), "k": experts.shape[1]}
        records.append(struct.pack("<3i", *(sizes[name] for name in order)) + experts.tobytes())
    return b"".join(records)


def llama_records(run: Run) -> bytes:
    """Write layer, tokens, k and experts of each call."""
    return _records(run, ("layer", "n_tokens", "k"))


def mbolt(run: Run) -> bytes:
    """Write a header, then layer, k, tokens and experts of each call."""
    header = struct.pack("<3i", MBOLT_MAGIC, 1, run.n_expert)
    return header + _records(run, ("layer", "k", "n_tokens"))


def moe_beyond(run: Run) -> dict[str, bytes]:
    """Write a file a prompt, layer by layer, with the texts of tokens that make CSV difficult."""
    texts = ['Ġ",', "<\uff5cbegin\u2581of\u2581sentence\uff5c>", ",", "Ċ", "[1, 2]", '"']
    files = {}
    for turn in sorted({each.turn for each in run.passes}):
        file = io.StringIO(newline="")
        table = csv.writer(file)
        table.writerow(["Layer ID", "Batch Number", "Token", "Activated Expert IDs"])
        prompts = [each for each in run.passes if each.turn == turn and each.is_prompt]
        for place, layer in enumerate(run.layers):
            for token in (token for each in prompts for token in each.tokens):
                text = texts[token % len(texts)]
                table.writerow([layer, 0, text, run.experts[token, place].tolist()])
        files[f"prompt_{turn + 9}_data.csv"] = file.getvalue().encode()
    return files


def layer_pairs(run: Run) -> bytes:
    """Write layer and expert of each selected expert."""
    pairs = [
        (run.layers[place], expert)
        for _, place, tokens in run.calls()
        for expert in run.experts[list(tokens), place].reshape(-1)
    ]
    return np.array(pairs, "<i4").tobytes()


def glm52_export(run: Run) -> bytes:
    """Write the experts of all tokens by layer, and the rows of each prompt."""
    prompts = []
    for turn in sorted({each.turn for each in run.passes}):
        passes = [each for each in run.passes if each.turn == turn]
        decoded = sum(not each.is_prompt for each in passes)
        rows = {"start_row": passes[0].tokens[0], "end_row": passes[-1].tokens[-1] + 1}
        prompts.append({"category": "math", **rows, "decode_step_rows": decoded})
    layers = {
        str(layer): {"executed_topk": run.experts[:, place].tolist()}
        for place, layer in enumerate(run.layers)
    }
    routing = {"n_expert_per_layer": run.n_expert, "k": run.experts.shape[2]}
    schema = "glm52-routing-trace-export/v2"
    export = {"schema": schema, "routing": routing, "conditional": {"prompts": prompts}}
    return json.dumps({**export, "layers": layers}).encode()


def routing_atlas(run: Run) -> bytes:
    """Write a line for each prompt."""
    lines = []
    for each in run.passes:
        activations = [
            {
                "layer": layer,
                "token_idx": row,
                "expert_idx": int(expert),
                "gate_weight": float(weight),
            }
            for place, layer in enumerate(run.layers)
            for row, token in enumerate(each.tokens)
            for expert, weight in zip(
                run.experts[token, place], run.weights[token, place], strict=True
            )
        ]
        model = {"model_id": "m", "num_layers": len(run.layers), "num_experts": run.n_expert}
        lines.append(json.dumps({**model, "text": "a b", "activations": activations}))
    return _lines(lines)


def flame_moe(run: Run) -> dict[str, bytes]:
    """Write a Parquet file for each layer."""
    files = {}
    for place, layer in enumerate(run.layers):
        scores = [list(map(np.float16, row)) for row in run.weights[:, place]]
        columns = {
            "scores": pa.array(scores, pa.list_(pa.float16())),
            "indices": pa.array(run.experts[:, place].tolist(), pa.list_(pa.int16())),
        }
        file = io.BytesIO()
        pq.write_table(pa.table(columns), file)
        files[f"actives/iter_0540/layer_{layer:02}.parquet"] = file.getvalue()
    return files


def router_logits(run: Run) -> dict[str, np.ndarray]:
    """Return an array [tokens, experts] of each layer whose largest logits are the experts of a run."""
    rng = np.random.default_rng(1)
    n_tokens, _, k = run.experts.shape
    arrays = {}
    for place, layer in enumerate(run.layers):
        logits = rng.uniform(-3, 0, (n_tokens, run.n_expert)).astype(np.float32)
        best = np.arange(k, 0, -1, dtype=np.float32) / 4
        np.put_along_axis(logits, run.experts[:, place].astype(np.int64), best[None], axis=1)
        arrays[f"router_logits.{layer}"] = logits
    return arrays


def safetensors(arrays: dict[str, np.ndarray]) -> bytes:
    """Write float32 arrays as safetensors has them: a length, a header in JSON, the values."""
    header, data = {}, b""
    for name, values in arrays.items():
        place = [len(data), len(data) + values.nbytes]
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": place}
        data += values.tobytes()
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
