"""Layers where a table by token id selects the experts: recorded, counted, and no router's to guess."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from typer.testing import CliRunner, Result

from tracekit.cli.app import app
from tracekit.trace import Trace, TracekitError
from tracekit_engine import Generation, Options, Session, Streaming, record
from tracekit_engine.expert_check import check_plan
from tracekit_engine.graph import Plan
from tracekit_engine.model_file import ModelFile

PROMPTS = ["The quick brown fox", "jumps over the lazy dog"]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def model_by_token(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("deepseek4")


@pytest.fixture(scope="module")
def trace_path(model_by_token: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("by_token") / "run.trace"
    generation = Generation(24, ignore_eos=True)
    record(model_by_token, PROMPTS, out, options=Options(threads=1), generation=generation)
    return out


def test_the_table_is_what_is_recorded(model_by_token: Path, trace_path: Path) -> None:
    trace = Trace.open(trace_path)
    assert trace.moe_layers.tolist() == [0, 1, 2, 3]
    assert trace.facts.notes["layers_selected_by_token"] == [0, 1]
    token = trace.steps(["token"])["token"]
    rows = trace.routing(["layer", "experts", "weights", "logits", "gate_input"])
    data = model_by_token.read_bytes()
    for layer in (0, 1):
        stored = ModelFile.open(model_by_token).tensors[f"blk.{layer}.ffn_gate_tid2eid.weight"]
        table = np.frombuffer(data[stored.start : stored.stop], np.int32).reshape(-1, 2)
        at = rows["layer"] == layer
        assert np.array_equal(rows["experts"][at], table[token])
        assert np.isnan(rows["logits"][at]).all()
        assert np.isfinite(rows["gate_input"][at]).all()
        assert np.isfinite(rows["weights"][at]).all()
        assert trace.layer_array(layer, "router_matrix") is None
    assert np.isfinite(rows["logits"][rows["layer"] >= 2]).all()


def test_their_bytes_are_counted(model_by_token: Path, trace_path: Path) -> None:
    one = ModelFile.open(model_by_token).expert_bytes
    trace = Trace.open(trace_path)
    assert trace.expert_bytes.tolist() == [one[layer] for layer in range(4)]
    assert "4 layers, 4 of them MoE" in run("info", trace_path).stdout
    with Session(model_by_token, Options(streaming=Streaming())) as session:
        assert session.token_cycle == trace.token_cycle_bytes == 2 * sum(one.values())


def layers_of(result: dict, key: str) -> list:
    return [layer[key] for layer in result["layers"]]


@pytest.mark.slow  # records and predicts twice
def test_a_token_table_is_exact_and_no_router_guesses(trace_path: Path, tmp_path: Path) -> None:
    # Another recording with the same tokens: the last turn is one token longer.
    model = tiny_models.write(tmp_path / "same.gguf", "deepseek4")
    longer = tmp_path / "longer.trace"
    generation = Generation(25, ignore_eos=True)
    record(model, PROMPTS, longer, options=Options(threads=1), generation=generation)

    out = run("predict", trace_path, "--train", longer, "--per-layer", "--format", "json").stdout
    document = json.loads(out)
    results = {result["predictor"]: result for result in document["results"]}
    assert layers_of(results["token-table"], "slot_accuracy")[:2] == [1, 1]
    for name in ("ctrl", "stale-gate", "stale-gate-renorm", "stale-gate-fit", "embedding-gate"):
        assert layers_of(results[name], "unscored") == [48, 48, 0, 0], name
        assert layers_of(results[name], "slot_accuracy")[:2] == [None, None], name
    assert results["ctrl"]["slot_accuracy"] == 1
    (note,) = [note for note in document["notes"] if note.startswith("Not by logits")]
    assert "layers 0 and 1 select experts without a router" in note
    assert "ctrl" in note
    assert "CTRL IS BELOW" not in run("predict", trace_path).stdout


@pytest.mark.slow
def test_policies_act_on_what_is_known_there(trace_path: Path) -> None:
    arguments = ["--policy", "retention,prefetch", "--cache-mib", "0.1", "--format", "json"]
    assert len(json.loads(run("replay", trace_path, *arguments).stdout)["results"]) == 2


def test_the_shared_model(phone_traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "ds4.trace"
    run("record", phone_traces / "cases" / "ds4.gguf", "-p", "abc", "-n", "30", "-o", out)
    assert "4 layers, 4 of them MoE" in run("info", out).stdout
    (ctrl,) = json.loads(run("predict", out, "--predictor", "ctrl", "--format", "json").stdout)[
        "results"
    ]
    assert (ctrl["slot_accuracy"], ctrl["routings"], ctrl["unscored"]) == (1, 60, 60)


@pytest.fixture
def plan_and_file(model_by_token: Path) -> tuple[Plan, ModelFile]:
    with Session(model_by_token) as session:
        return session.plan, session.file


def test_experts_that_the_graph_does_not_use(plan_and_file: tuple[Plan, ModelFile]) -> None:
    plan, file = plan_and_file
    check_plan(plan, file)
    without = dataclasses.replace(plan, layers=plan.layers[:1] + plan.layers[2:])
    with pytest.raises(TracekitError, match=r"experts in layer 1 \(blk\.1\.ffn_down_exps\.weight"):
        check_plan(without, file)
    first = dataclasses.replace(plan.layers[0], experts=plan.layers[0].experts[1:])
    fewer = dataclasses.replace(plan, layers=(first, *plan.layers[1:]))
    with pytest.raises(TracekitError, match=r"experts in layer 0 \(blk\.0\.ffn_gate_exps\.weight"):
        check_plan(fewer, file)


def test_experts_that_the_file_does_not_name(plan_and_file: tuple[Plan, ModelFile]) -> None:
    plan, file = plan_and_file
    name = "blk.1.ffn_up_exps.weight"
    tensors = {key: value for key, value in file.tensors.items() if key != name}
    with pytest.raises(
        TracekitError, match=r"layer 1 of the graph selects slices of blk\.1\.ffn_up"
    ):
        check_plan(plan, dataclasses.replace(file, tensors=tensors))
