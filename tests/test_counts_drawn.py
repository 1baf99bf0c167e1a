"""Counts of one drawn run in every layout that holds no more than counts: each opens to the same."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from drawn_run import Drawn, large_run, small_run
from layouts_servers import physical
from model_file_samples import f32, gguf, safetensors
from torch_writer import T, saved_by_torch

from tracekit.formats import open_counts

Write = Callable[[Drawn, Path], Path]
LAYOUTS: dict[str, Write] = {}
# Of these an array says which layer it is by its place alone, dense ones left out.
OF_MOE_LAYERS = {"eplb"}


def layout(write: Write) -> Write:
    LAYOUTS[write.__name__] = write
    return write


def _lines(run: Drawn, separator: str) -> str:
    table = run.counts()
    used = np.argwhere(table > 0).tolist()
    return "".join(f"{separator.join(map(str, (n, e, table[n, e])))}\n" for n, e in used)


@layout
def imatrix(run: Drawn, folder: Path) -> Path:
    tensors = {"blk.0.ffn_down.weight.counts": f32(np.full((1, 1), len(run)))}
    for layer in run.layers:
        for name in ("gate", "up", "down"):
            key = f"blk.{layer}.ffn_{name}_exps.weight"
            tensors[f"{key}.in_sum2"] = f32(np.ones((run.n_expert, 2)))
            tensors[f"{key}.counts"] = f32(run.counts()[layer][:, None])
    (folder / "imatrix.gguf").write_bytes(gguf({"general.type": "imatrix"}, tensors))
    return folder / "imatrix.gguf"


@layout
def stat(run: Drawn, folder: Path) -> Path:
    """Write a step for each half of the run."""
    first = run.taken(np.arange(len(run)) < len(run) // 2).counts()
    steps = np.stack([first, run.counts() - first]).astype(np.int32)
    (folder / "r.pt").write_bytes(saved_by_torch({"rank": 0, "logical_count": T(steps)}))
    return folder / "r.pt"


@layout
def per_pass(run: Drawn, folder: Path) -> Path:
    to_logical, experts = physical(run)
    n_physical = to_logical.shape[1]
    records = []
    for number, rows in enumerate(run.each_pass()):
        counts = np.zeros(to_logical.shape, np.int32)
        for place, layer in enumerate(run.layers):
            counts[layer] = np.bincount(experts[rows, place].ravel(), minlength=n_physical)
        record = {"forward_pass_id": number, "rank": 0, "global_physical_count": T(counts)}
        records.append(record)
    value = {"records": records, "last_physical_to_logical_map": T(to_logical)}
    (folder / "r.pt").write_bytes(saved_by_torch(value))
    return folder / "r.pt"


@layout
def sglang_csv(run: Drawn, folder: Path) -> Path:
    (folder / "r.csv").write_text("layer_id,expert_id,count\n" + _lines(run, ","))
    return folder / "r.csv"


@layout
def tensorrt_llm(run: Drawn, folder: Path) -> Path:
    tensors = {}
    for number, rows in enumerate(run.each_pass(), 100):
        for place, layer in enumerate(run.layers):
            chosen = run.experts[rows, place].ravel()
            tensors[f"{number}_{layer}"] = np.bincount(chosen, minlength=run.n_expert)
    says = {"num_experts": run.n_expert, "num_experts_per_token": run.k}
    (folder / "meta_info.json").write_text(json.dumps(says))
    (folder / "rank0.safetensors").write_bytes(safetensors(tensors))
    return folder


@layout
def coli_usage(run: Drawn, folder: Path) -> Path:
    head = f"-1 {run.n_layer} {run.n_expert}\n-2 1 77\n"
    (folder / ".coli_usage").write_text(head + _lines(run, " "))
    return folder / ".coli_usage"


@layout
def eplb(run: Drawn, folder: Path) -> Path:
    np.save(folder / "weight.npy", run.counts()[list(run.layers)].astype(np.float32))
    return folder / "weight.npy"


@layout
def moe_infinity(run: Drawn, folder: Path) -> Path:
    """Write a matrix for each request."""
    of_requests = [run.taken(run.turn == request.turn).counts() for request in run.requests()]
    np.save(folder / "eam.npy", np.stack(of_requests).astype(np.float32))
    return folder / "eam.npy"


def check(name: str, run: Drawn, folder: Path) -> None:
    found = open_counts(LAYOUTS[name](run, folder))
    layers = list(run.layers)
    assert list(found.layers) == ([*range(len(layers))] if name in OF_MOE_LAYERS else layers)
    n_expert = found.counts.shape[1]  # that of some layouts is the largest id + 1
    assert np.array_equal(found.counts, run.counts()[layers][:, :n_expert])
    assert not run.counts()[:, n_expert:].any()


@pytest.mark.parametrize("name", LAYOUTS)
def test_counts_are_those_of_the_run(name: str, tmp_path: Path):
    check(name, small_run(), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_counts_are_those_of_a_large_run(name: str, tmp_path: Path):
    check(name, large_run(), tmp_path)
