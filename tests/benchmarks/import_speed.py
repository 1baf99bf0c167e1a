"""How fast files of other tools are imported, and in how much memory.

Run by hand: ``python tests/benchmarks/import_speed.py FOLDER``. Writes files of 5 million routing slots
to FOLDER and imports each in a process of its own, three times. In turns with it, a library alone reads
the file (numpy or pyarrow) and then writes the Parquet files of the trace,
which nobody checks. Prints the medians in nanoseconds a slot, the processor time, the ratio of both,
which holds on slow and fast machines, and the peak of anonymous memory; removes the files.
Limits: 150 ns a slot from npz and Parquet, 250 from CSV, 600 from JSON lines and prompts of
moe-routing-atlas.
``--slots 100000000`` shows that memory does not grow with the file.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from bounded_memory import Peak
from pyarrow import csv
from pyarrow import json as pa_json

MIB = 1 << 20
N_LAYER, N_EXPERT, PROMPT, TURN = 48, 128, 200, 500
SLOTS = 5_000_000
ROUNDS = 3
LONGEST_LINE = 32 * MIB
LIMITS = {
    "npz": 150,
    "npz-deflated": 150,
    "parquet": 150,
    "parquet-long": 150,
    "csv": 250,
    "jsonl": 600,
    "atlas": 600,
}


def run_of(n_tokens: int, k: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return experts [tokens, layers, k], distinct in a routing, and weights."""
    rng = np.random.default_rng(seed)
    first = rng.integers(0, N_EXPERT, (n_tokens, N_LAYER, 1), dtype=np.int16)
    stride = rng.integers(1, N_EXPERT // k, (n_tokens, N_LAYER, 1), dtype=np.int16)
    experts = (first + stride * np.arange(k, dtype=np.int16)) % N_EXPERT
    weights = np.sort(rng.random((n_tokens, N_LAYER, k), np.float32), axis=2)[:, :, ::-1]
    return experts, weights


def long_table(experts: np.ndarray, weights: np.ndarray, lists: bool) -> pa.Table:
    """Return the rows in the order of an engine: of each pass layer by layer."""
    n_tokens, _, k = experts.shape
    token = np.arange(n_tokens)
    turn, step = token // TURN, token % TURN
    passes = np.where(step < PROMPT, 0, step)
    order = np.lexsort(
        (
            np.repeat(step, N_LAYER),
            np.tile(np.arange(N_LAYER), n_tokens),
            np.repeat(passes, N_LAYER),
            np.repeat(turn, N_LAYER),
        )
    )
    token, layer = np.divmod(order, N_LAYER)
    phase = pa.DictionaryArray.from_arrays(
        pa.array((step[token] >= PROMPT).astype(np.int32)), pa.array(["prefill", "decode"])
    )
    flat, flat_weights = experts.reshape(-1, k)[order], weights.reshape(-1, k)[order]
    places = {"prompt": turn[token], "token": step[token], "layer": layer}
    if lists:
        columns = {name: pa.array(values) for name, values in places.items()}
        columns["experts"] = pa.FixedSizeListArray.from_arrays(pa.array(flat.reshape(-1)), k)
        columns["weights"] = pa.FixedSizeListArray.from_arrays(
            pa.array(flat_weights.reshape(-1)), k
        )
        return pa.table({**columns, "phase": phase})
    columns = {name: pa.array(np.repeat(values, k)) for name, values in places.items()}
    columns["slot"] = pa.array(np.tile(np.arange(k), len(flat)))
    columns["expert"] = pa.array(flat.reshape(-1))
    columns["weight"] = pa.array(np.round(flat_weights.reshape(-1), 6))
    return pa.table({**columns, "phase": phase.take(pa.array(np.repeat(np.arange(len(flat)), k)))})


def write_npz(path: Path, experts: np.ndarray, weights: np.ndarray, save: Callable) -> None:
    """Write what somebody with arrays has."""
    lengths = np.diff(np.append(np.arange(0, len(experts), TURN), len(experts)))
    prompts = np.minimum(lengths, PROMPT)
    save(path, experts=experts, weights=weights, lengths=lengths, prompt_lengths=prompts)


def write_jsonl(path: Path, table: pa.Table) -> None:
    """Write a routing a line."""
    with path.open("w", encoding="utf-8") as file:
        for row in table.to_pylist():
            row["weights"] = [round(weight, 6) for weight in row["weights"]]
            file.write(json.dumps(row) + "\n")


def write_atlas(path: Path, experts: np.ndarray, weights: np.ndarray) -> None:
    """Write a prompt a line, as moe-routing-atlas does: an object for each selected expert."""
    names = ("layer", "token_idx", "expert_idx", "gate_weight")
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(experts), TURN):
            chosen = experts[start : start + TURN]
            token, layer, _ = np.indices(chosen.shape)
            scores = np.round(weights[start : start + TURN].astype(float), 6)
            columns = (layer, token, chosen, scores)
            rows = zip(*(column.ravel().tolist() for column in columns), strict=True)
            found = [dict(zip(names, row, strict=True)) for row in rows]
            file.write(json.dumps({"num_experts": N_EXPERT, "activations": found}) + "\n")


def write(path: Path, kind: str, experts: np.ndarray, weights: np.ndarray) -> None:
    """Write a file of a kind."""
    if kind.startswith("npz"):
        write_npz(path, experts, weights, np.savez if kind == "npz" else np.savez_compressed)
    elif kind == "csv":
        csv.write_csv(long_table(experts, weights, lists=False), path)
    elif kind == "atlas":
        write_atlas(path, experts, weights)
    elif kind == "jsonl":
        write_jsonl(path, long_table(experts, weights, lists=True))
    else:
        pq.write_table(long_table(experts, weights, lists=kind == "parquet"), path)


def read_alone(path: Path) -> None:
    """Read a file with the library that reads its kind, and do nothing with it."""
    if path.suffix == ".npz":
        with np.load(path) as arrays:
            for name in arrays.files:
                arrays[name]
    elif path.suffix == ".csv":
        csv.read_csv(path)
    elif path.suffix in (".jsonl", ".atlas"):
        pa_json.read_json(path, pa_json.ReadOptions(block_size=LONGEST_LINE))
    else:
        pq.read_table(path)


def alone(path: Path, trace: Path) -> Callable[[], None]:
    """Return what reads the file at `path` and writes the tables of the trace that was made of it."""
    from tracekit.trace.encode import write_groups

    tables = {}
    for name in ("routing.parquet", "steps.parquet"):
        with pq.ParquetFile(trace / name) as file:
            groups = [file.read_row_group(group) for group in range(file.num_row_groups)]
            tables[trace.with_suffix(f".{name}")] = file.schema_arrow, groups

    def work() -> None:
        read_alone(path)
        for target, (schema, groups) in tables.items():
            write_groups(target, schema, iter(groups))
            target.unlink()

    return work


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return the seconds of the clock, and of all processors, that `work` takes."""
    started, busy = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - busy


def import_one(path: Path) -> None:
    """Import a file in this process; print seconds and the peak of memory as JSON."""
    from tracekit.formats import ImportOptions, import_any

    trace = path.with_suffix(".trace")
    import_any(path, trace, ImportOptions(), force=True)  # everything is loaded now
    peak = Peak()
    peak.start()
    done = import_any(path, trace, ImportOptions(expert_mib=1), force=True)
    n_bytes = peak.stop()
    options = ImportOptions(expert_mib=1)
    beside = alone(path, trace)
    ours, theirs = [], []
    for _ in range(ROUNDS):
        theirs.append(timed(beside))
        ours.append(timed(lambda: import_any(path, trace, options, force=True)))
    seconds, busy = np.median(ours, axis=0)
    shutil.rmtree(trace)
    found = {"seconds": seconds, "busy": busy, "alone": np.median(theirs, axis=0)[0]}
    print(json.dumps({**found, "bytes": n_bytes, "rows": done.n_rows}))


def main() -> int:
    """Write, import and print a line for each kind of file."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--slots", type=int, default=SLOTS)
    arguments.add_argument("--top-k", type=int, default=8)
    arguments.add_argument("--kinds", default=",".join(LIMITS))
    arguments.add_argument("--import-one", action="store_true")
    given = arguments.parse_args()
    if given.import_one:
        import_one(given.folder)
        return 0
    n_tokens = given.slots // (N_LAYER * given.top_k)
    experts, weights = run_of(n_tokens, given.top_k, seed=0)
    worst = 0.0
    for kind in given.kinds.split(","):
        path = given.folder / f"run.{kind}"
        if kind.startswith("npz"):
            path = given.folder / f"{kind}.npz"
        write(path, kind, experts, weights)
        out = subprocess.run(
            [sys.executable, __file__, str(path), "--import-one"], capture_output=True, check=True
        )
        found = json.loads(out.stdout)
        each, of_processor, alone = (
            found[name] * 1e9 / (found["rows"] * given.top_k)
            for name in ("seconds", "busy", "alone")
        )
        worst = max(worst, each / LIMITS[kind])
        print(
            f"{kind:13} {each:6.0f} ns a slot (limit {LIMITS[kind]}), "
            f"{of_processor:6.0f} ns of processor time, {each / alone:5.2f} of a library alone "
            f"({alone:.0f} ns), {found['bytes'] / MIB:6.0f} MiB, "
            f"file of {path.stat().st_size / MIB:.0f} MiB",
            flush=True,
        )
        path.unlink()
    return int(worst > 1 and given.slots >= SLOTS)  # a small file is opened longer than it is read


if __name__ == "__main__":
    sys.exit(main())
