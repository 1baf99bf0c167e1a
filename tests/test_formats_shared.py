"""Small made-up files of many tools, all of one run: each imports to the routing that it holds.

One line a file in `HELD`. The files lie beside the phone traces (CONTRIBUTING.md).
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tracekit.formats import ImportOptions, import_any, open_any
from tracekit.trace import Trace, UsageError
from tracekit.trace.schema import DECODE, PREFILL


@dataclass(frozen=True)
class Held:
    """What a file holds of the run.

    Attributes
    ----------
    path : str or tuple of str
        A file or folder, or several files.
    options : dict
        Of `ImportOptions`, without which it cannot be read.
    weights : float or None
        How far its weights may be from the run's; None: it has none.
    knows_prompt : bool
        Whether it says that the first three tokens are the prompt.
    order : str
        `slot_order` of the trace.
    knows_n_expert : bool
    layers : list of int or None
        Numbers of its layers, if it leaves out the dense one without saying which it is.
    """

    path: str | tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    weights: float | None = None
    knows_prompt: bool = True
    order: str = "unknown"
    knows_n_expert: bool = False
    layers: list[int] | None = None


HELD = [
    Held("universal/trace.npz", weights=1e-6, order="ranked", knows_n_expert=True),
    Held("universal/long.csv", weights=2e-6, order="ranked"),
    Held("vllm/routed_experts.npy", knows_prompt=False),
    Held("route_sim/trace.jsonl"),
    Held("moe_trace_mlx/workload_routing_trace.jsonl", weights=1e-6, order="ranked"),
    Held("moe_cache_lab/trace_v1.jsonl", knows_n_expert=True),
    Held("llamacpp/moe_trace_phase.csv", order="ranked"),
    Held("llamacpp/moe_trace_pr28544.csv", {"top_k": 2}),
    Held("vllm/completion_v0.22plus.json"),
    Held("vllm/completion_v0.21.json", layers=[0, 1, 2]),
    Held("vllm/chat_v0.21.json", layers=[0, 1, 2]),
    Held("sglang/generate.json", {"n_layer": 4, "top_k": 2}),
    Held("sglang/chat_completion.json", {"n_layer": 4, "top_k": 2}),
    Held("sglang/per_token", knows_n_expert=True),
    Held("megatron/router_trace_rank0.jsonl", order="ranked", knows_n_expert=True),
    Held("megatron/completion.json", layers=[0, 1, 2]),
    Held("colibri/route_trace.txt", weights=6e-5, order="ranked"),
    Held("llamacpp/moe_trace_pos.csv", order="ranked"),
    Held("llamacpp/moe_trace_lab.bin", order="ranked"),
    Held("glm52_atlas/trace.json", order="ranked", knows_n_expert=True),
    Held("kimi_k3_c/expert_trace.bin", {"top_k": 2}, knows_prompt=False),
]
IDS = [held.path if isinstance(held.path, str) else held.path[0] for held in HELD]


@pytest.fixture(scope="module")
def folder(phone_traces: Path) -> Path:
    root = phone_traces / "formats"
    if not root.is_dir():
        pytest.skip(f"the files of other tools are not at {root}")
    return root


@pytest.fixture(scope="module")
def run(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "expected.json").read_text())


def paths(held: Held, folder: Path) -> list[Path]:
    return [folder / each for each in ([held.path] if isinstance(held.path, str) else held.path)]


def by_token(trace: Trace, column: str) -> np.ndarray:
    """Return a column [tokens, layers, …], whatever passes the tokens were in."""
    rows = trace.routing(["step", "layer", column])
    order = np.lexsort((rows["layer"], rows["step"]))
    return rows[column][order].reshape(-1, len(trace.moe_layers), *rows[column].shape[1:])


@pytest.mark.parametrize("held", HELD, ids=IDS)
def test_a_file_imports_to_the_run(held, folder, run, tmp_path):
    options = ImportOptions(**held.options)
    import_any(paths(held, folder), tmp_path / "x.trace", options)
    trace = open_any(tmp_path / "x.trace")
    assert trace.complete
    assert trace.moe_layers.tolist() == (held.layers or run["layers"])
    assert np.array_equal(by_token(trace, "experts"), run["ids"])
    assert trace.n_expert == run["n_expert"]
    assert ("n_expert" in trace.facts.inferred) != held.knows_n_expert
    assert trace.facts.slot_order == held.order
    n_prompt = run["prompt"] if held.knows_prompt else 0
    steps = trace.steps(["pass", "phase", "step"])
    assert steps["step"].tolist() == list(range(5))
    assert steps["phase"].tolist() == [PREFILL] * n_prompt + [DECODE] * (5 - n_prompt)
    assert len(np.unique(steps["pass"])) == 5 - max(0, n_prompt - 1)
    assert trace.has("weights") == (held.weights is not None)
    if held.weights is not None:
        assert np.allclose(by_token(trace, "weights"), run["weights"], rtol=0, atol=held.weights)


@pytest.mark.parametrize("held", HELD, ids=IDS)
def test_a_file_that_needs_no_flag_opens_directly(held, folder):
    if held.options:
        with pytest.raises(UsageError, match="import it with `tracekit import"):
            open_any(paths(held, folder))
    else:
        assert open_any(paths(held, folder)).n_rows == 15


# Of a run, these have some tokens at some layers: which of the five tokens, and numbers of the layers.
PARTS = {
    "mbolt/route.bin": ({}, range(5), [1, 2, 3]),
    "jiro_expert_cache/trace.txt": ({}, range(3, 5), [1, 2, 3]),
    "moe_beyond": ({}, range(3), [1, 2, 3]),
    "moe_routing_atlas/traces.jsonl": ({}, range(3), [1, 2, 3]),
    "transformers/router_logits.npz": ({"top_k": 2}, range(3), [1, 2, 3]),
    "transformers/router_logits.safetensors": ({"top_k": 2}, range(3), [1, 2, 3]),
    "transformers/router_logits.pt": ({"top_k": 2}, range(3), [0, 1, 2]),
    "flame_moe": ({}, range(5), [2, 3]),
}


@pytest.mark.parametrize("path", PARTS)
def test_a_file_of_a_part_imports_to_that_part(path, folder, run):
    options, tokens, layers = PARTS[path]
    trace = open_any(folder / path, options=ImportOptions(**options))
    rows = trace.routing(["step", "layer", "experts"])
    found = {
        (step, layer): experts
        for step, layer, experts in zip(*(rows[n].tolist() for n in rows), strict=True)
    }
    expected = {
        (token, layer): run["ids"][token][place]
        for token in tokens
        for place, layer in enumerate(layers)
    }
    if path.startswith("mbolt"):  # the last layer of a prompt has the row of its last token only
        del expected[0, 3], expected[1, 3]
    assert found == expected
    assert trace.complete


def test_sizes_that_a_file_gives_are_those_of_its_layers(folder):
    trace = open_any(folder / "universal/trace.npz")
    assert trace.expert_bytes.tolist() == [3000] * 3
    assert trace.layer_columns["expert_bytes"].tolist() == [-1, 3000, 3000, 3000]


def test_other_cases_that_people_have(phone_traces):
    cases = phone_traces / "cases"
    trace = open_any(cases / "lattice.jsonl")
    assert (trace.n_decoded, trace.top_k, trace.moe_layers.tolist()) == (20, 2, [0, 1, 2, 3])
    assert trace.routing(["experts"])["experts"][:2].tolist() == [[0, 8], [13, 9]]
    trace = open_any(cases / "moe_trace.csv", options=ImportOptions(top_k=2))
    assert (trace.n_decoded, trace.top_k, trace.moe_layers.tolist()) == (20, 2, [0, 1, 2, 3])
    assert trace.routing(["experts"])["experts"][:2].tolist() == [[12, 15], [13, 0]]
