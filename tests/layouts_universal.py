"""The forms that anybody writes: npz and npy, CSV and Parquet, JSON lines, under all their names."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from drawn_run import DECODE, Drawn
from layouts import chunks, layout

PHASES = ("prefill", "decode")

# ---- npz and npy --------------------------------------------------------------------------------


def _lengths(run: Drawn) -> dict[str, list[int]]:
    requests = run.requests()
    return {
        "lengths": [request.n_rows for request in requests],
        "prompt_lengths": [request.n_prompt for request in requests],
    }


@layout("npz of all layers", options=chunks)
def _(run: Drawn, folder: Path) -> Path:
    experts = run.all_layers().astype(np.uint16)
    np.savez(folder / "a.npz", experts=experts, n_expert=run.n_expert, **_lengths(run))
    return folder / "a.npz"


@layout("npz with all that is known", order="ranked", holds=("weights", "logits", "token"))
def _(run: Drawn, folder: Path) -> Path:
    mixed = run.shuffled()
    np.savez_compressed(
        folder / "a.npz",
        experts=mixed.experts.astype(np.int16),
        weights=mixed.weights,
        logits=run.logits,
        layers=list(run.layers),
        token_ids=run.token,
        n_expert=run.n_expert,
        expert_bytes=[0 if n not in run.layers else 1000 for n in range(run.n_layer)],
        **{"pass": run.passes},
        **_lengths(run),
    )
    return folder / "a.npz"


@layout(
    "npz [layers, tokens, k]",
    options=lambda run: {"axes": ("layers", "tokens", "k"), **chunks(run)},
    order="ranked",
    holds=("weights",),
)
def _(run: Drawn, folder: Path) -> Path:
    weights = np.zeros((len(run), run.n_layer, run.k))
    weights[:, list(run.layers)] = run.weights
    np.savez(
        folder / "a.npz",
        selected_experts=np.asfortranarray(run.all_layers(-1).swapaxes(0, 1)),
        gate_weights=weights.swapaxes(0, 1),
        **_lengths(run),
    )
    return folder / "a.npz"


@layout("npz with columns of tokens", holds=("token",))
def _(run: Drawn, folder: Path) -> Path:
    np.savez(
        folder / "a.npz",
        topk_ids=run.all_layers(),
        prompt_id=run.turn + 7,
        phase=run.phase,
        pos=run.step,
        forward_pass_id=run.passes * 2,
        input_ids=run.token,
    )
    return folder / "a.npz"


@layout("npy", view=lambda run: run.all_decoded(one_turn=True))
def _(run: Drawn, folder: Path) -> Path:
    np.save(folder / "a.npy", run.all_layers().astype(np.uint8))
    return folder / "a.npy"


@layout(
    "npy [k, layers, tokens]",
    view=lambda run: run.all_decoded(one_turn=True),
    options=lambda run: {"axes": ("k", "layers", "tokens")},
)
def _(run: Drawn, folder: Path) -> Path:
    np.save(folder / "a.npy", run.all_layers(-1).T)
    return folder / "a.npy"


# ---- tables -------------------------------------------------------------------------------------


def _routings(run: Drawn, by_token: bool = False) -> Iterator[tuple[int, int, int]]:
    """Yield token, place and number of the layer: as computed, or all layers of a token together."""
    if by_token:
        for token in range(len(run)):
            for place, layer in enumerate(run.layers):
                yield token, place, layer
        return
    for place, layer, rows in run.calls():
        for token in rows.tolist():
            yield token, place, layer


def _table(
    run: Drawn, phases: Sequence[str] = PHASES, by_token: bool = False, lists: bool = False
) -> dict[str, list]:
    """Return all columns: a row a routing with lists, or a row a selected expert."""
    token, place, layer = map(list, zip(*_routings(run, by_token), strict=True))
    columns: dict[str, list] = {
        "prompt": run.turn[token].tolist(),
        "token": run.step[token].tolist(),
        "layer": layer,
        "phase": [phases[phase] for phase in run.phase[token]],
        "pass": run.passes[token].tolist(),
        "token_id": run.token[token].tolist(),
    }
    of_slots = {"expert": run.experts[token, place], "weight": run.weights[token, place]}
    if lists:
        return columns | {name: values.tolist() for name, values in of_slots.items()}
    columns = {name: np.repeat(values, run.k).tolist() for name, values in columns.items()}
    columns["slot"] = np.tile(np.arange(run.k), len(token)).tolist()
    return columns | {name: values.ravel().tolist() for name, values in of_slots.items()}


def _csv(path: Path, table: dict[str, list], names: dict[str, str], separator: str = ",") -> Path:
    """Write the columns of `names` in that order, each under its new name."""
    rows = zip(*(table[name] for name in names), strict=True)
    lines = [names.values(), *rows]
    text = "".join(separator.join(map(str, line)) + "\n" for line in lines)
    path.write_text(text, encoding="utf-8")
    return path


CSV_NAMES = {
    "token": ("token_index", "token_position", "token_idx", "t", "pos", "token"),
    "expert": ("expert_id", "expert_ids", "selected_experts", "topk_ids", "top_indices", "experts"),
    "layer": ("layer_id", "layer_idx", "layer", "Layer", "LAYER_ID", "layer"),
    "weight": ("score", "gate_weight", "gate_weights", "scores", "Weight", "weights"),
}


def _register_csv(number: int) -> None:
    phases = PHASES if number % 2 else ("prompt", "generated")

    @layout(f"csv, names {number}", options=chunks, order="ranked", holds=("weights",))
    def _(run: Drawn, folder: Path) -> Path:
        names = {name: each[number] for name, each in CSV_NAMES.items()} | {"phase": "phase"}
        if number != 3:  # without it, a prompt begins where the tokens are counted anew
            names["prompt"] = ("prompt", "prompt_id", "turn", "", "request", "Prompt")[number]
        order = np.random.default_rng(number).permutation(list(names))
        names = {name: names[name] for name in order.tolist()}
        table = _table(run.shuffled(), phases, by_token=number % 2 == 0)
        return _csv(folder / "a.csv", table, names, ",;\t"[number % 3])


for _number in range(6):
    _register_csv(_number)


@layout("csv with pass and slot", order="ranked", holds=("token",))
def _(run: Drawn, folder: Path) -> Path:
    names = ("expert", "slot", "layer", "token", "pass", "phase", "prompt", "token_id")
    table = _table(run)
    table["prompt"] = [f"request {number}, or so" for number in table["prompt"]]
    table["prompt"] = [f'"{text}"' for text in table["prompt"]]
    return _csv(folder / "a.csv", table, {name: name for name in names})


@layout("csv of tokens and layers only", view=lambda run: run.all_decoded())
def _(run: Drawn, folder: Path) -> Path:
    return _csv(folder / "a.csv", _table(run), {n: n for n in ("token", "layer", "expert")})


@layout("csv, a file a prompt", options=chunks)
def _(run: Drawn, folder: Path) -> list[Path]:
    paths = []
    for request in run.requests():
        names = {name: name for name in ("token", "layer", "expert", "phase")}
        one = run.taken(np.arange(len(run))[request.rows])
        paths.append(_csv(folder / f"{request.turn}.csv", _table(one), names))
    return paths


def _parquet(path: Path, columns: dict[str, pa.Array]) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=97)
    return path


@layout("parquet, a row a slot", order="ranked", holds=("weights", "token"))
def _(run: Drawn, folder: Path) -> Path:
    table = _table(run.shuffled())
    del table["slot"]
    table["prompt"] = pa.array([f"p{n}" for n in table["prompt"]]).dictionary_encode()
    table["layer"] = pa.array(table["layer"], pa.uint8())
    table["expert"] = pa.array(table["expert"], pa.uint16())
    return _parquet(folder / "a.parquet", table)


LISTS = {
    "list": lambda values, kind, k: pa.array(values, pa.list_(kind)),
    "large list": lambda values, kind, k: pa.array(values, pa.large_list(kind)),
    "list of one length": lambda values, kind, k: pa.array(values, pa.list_(kind, k)),
}


def _register_parquet(called: str) -> None:
    @layout(f"parquet, a {called} a routing", options=chunks, order="ranked", holds=("weights",))
    def _(run: Drawn, folder: Path) -> Path:
        table = _table(run.shuffled(), lists=True, by_token=called == "large list")
        columns = {
            "layer_idx": pa.array(table["layer"], pa.int16()),
            "topk_ids": LISTS[called](table["expert"], pa.uint8(), run.k),
            "gate_weights": LISTS[called](table["weight"], pa.float64(), run.k),
            "token_idx": pa.array(table["token"], pa.uint32()),
            "turn": pa.array(table["prompt"], pa.int8()),
            "phase": pa.array(table["phase"]),
        }
        return _parquet(folder / "a.parquet", columns)


for _called in LISTS:
    _register_parquet(_called)


# ---- JSON lines ---------------------------------------------------------------------------------


def write_lines(path: Path, objects: list[object]) -> Path:
    path.write_text("".join(f"{json.dumps(each)}\n" for each in objects), encoding="utf-8")
    return path


def _objects(table: dict[str, list], names: dict[str, str]) -> list[dict]:
    rows = zip(*(table[name] for name in names), strict=True)
    return [dict(zip(names.values(), row, strict=True)) for row in rows]


@layout("jsonl, an object a slot", order="ranked", holds=("token",))
def _(run: Drawn, folder: Path) -> Path:
    names = ("phase", "slot", "pass", "token", "expert", "layer", "prompt", "token_id")
    return write_lines(folder / "a.jsonl", _objects(_table(run), {n: n for n in names}))


JSON_NAMES = {
    "token": ("token_idx", "position", "token"),
    "expert": ("selected_ids", "topk_ids", "experts"),
    "layer": ("layer_idx", "layer_id", "layer"),
    "weight": ("gate_weights", "topk_weights", "weights"),
    "prompt": ("request_id", "prompt_id", "turn"),
    "phase": ("phase", "phase", "phase"),
}


def _register_jsonl(number: int) -> None:
    @layout(f"jsonl, names {number}", options=chunks, order="ranked", holds=("weights",))
    def _(run: Drawn, folder: Path) -> Path:
        names = {name: each[number] for name, each in JSON_NAMES.items()}
        return write_lines(folder / "a", _objects(_table(run.shuffled(), lists=True), names))


for _number in range(3):
    _register_jsonl(_number)


@layout("gajsanders moe-trace", options=chunks, order="ranked", holds=("weights",))
def _(run: Drawn, folder: Path) -> Path:
    mixed = run.shuffled()
    objects = [
        {
            "phase": PHASES[mixed.phase[token]],
            "token_index": int(mixed.step[token]),
            "layer": layer,
            "expert_ids": mixed.experts[token, place].tolist(),
            "scores": mixed.weights[token, place].tolist(),
            "prompt_id": f"code_{mixed.turn[token]:02}",
            "workload": "code",
            "model": "mlx-community/Tiny",
        }
        for token, place, layer in _routings(mixed)
    ]
    return write_lines(folder / "workload_routing_trace.jsonl", objects)


@layout("route_sim", options=chunks)
def _(run: Drawn, folder: Path) -> Path:
    names = {"token": "t", "layer": "layer", "expert": "experts", "phase": "phase"}
    table = _table(run, by_token=True, lists=True)
    return write_lines(folder / "trace.jsonl", _objects(table, names))


def _cache_lab(run: Drawn, folder: Path, version: int) -> list[Path]:
    """Write a file a prompt: the prompt layer by layer, generated tokens one by one."""
    paths = []
    for request in run.requests():
        one = run.taken(np.arange(len(run))[request.rows])
        if version == 2:
            one = one.shuffled()
        order = sorted(
            _routings(one, by_token=True),
            key=lambda each: (one.phase[each[0]] * (each[0] + 1), each[2], each[0]),
        )
        objects: list[dict] = [
            {
                "record_type": "metadata",
                "format": "moe-cache-lab.routing-jsonl",
                "format_version": version,
                "model_id": "tiny",
                "num_experts": run.n_expert,
                "experts_per_token": run.k,
            }
        ]
        for token, place, layer in order:
            row = {
                "record_type": "routing_selection",
                "phase": "generated" if one.phase[token] == DECODE else "prompt",
                "token_position": int(one.step[token]),
                "layer": layer,
                "selected_experts": one.experts[token, place].tolist(),
            }
            if version == 2:
                row["selected_probabilities"] = one.weights[token, place].tolist()
                row["token_id"] = int(one.token[token])
            objects.append(row)
        paths.append(write_lines(folder / f"trace_{request.turn}.jsonl", objects))
    return paths


@layout("moe-cache-lab v1", options=chunks)
def _(run: Drawn, folder: Path) -> list[Path]:
    return _cache_lab(run, folder, 1)


@layout("moe-cache-lab v2", options=chunks, order="ranked", holds=("weights", "token"))
def _(run: Drawn, folder: Path) -> list[Path]:
    return _cache_lab(run, folder, 2)
