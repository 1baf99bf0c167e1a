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
    """

    path: str | tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    weights: float | None = None
    knows_prompt: bool = True
    order: str = "unknown"
    knows_n_expert: bool = False


HELD = [
    Held("universal/trace.npz", weights=1e-6, order="ranked", knows_n_expert=True),
    Held("universal/long.csv", weights=2e-6, order="ranked"),
    Held("vllm/routed_experts.npy", knows_prompt=False),
    Held("route_sim/trace.jsonl"),
    Held("moe_trace_mlx/workload_routing_trace.jsonl", weights=1e-6, order="ranked"),
    Held("moe_cache_lab/trace_v1.jsonl", knows_n_expert=True),
    Held("llamacpp/moe_trace_phase.csv", order="ranked"),
    Held("llamacpp/moe_trace_pr28544.csv", {"top_k": 2}),
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
    assert trace.moe_layers.tolist() == run["layers"]
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
