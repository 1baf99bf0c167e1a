"""A recording replays exactly, and the router on its own input selects what was selected."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny_models
from families import slow_unless
from runs import totals_by_pass
from typer.testing import CliRunner, Result

from tracekit.cli.app import app
from tracekit.trace import Trace
from tracekit_engine import Generation, Options, Streaming, record
from tracekit_engine.model_file import ModelFile


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize(
    "arch",
    slow_unless(tiny_models.MODELS, "llama4", "qwen3moe"),
)
def test_a_recording_replays_and_is_reproduced(
    arch: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tiny_model(arch)
    out = tmp_path / "run.trace"
    budget = 12 * max(ModelFile.open(path).expert_bytes.values())
    record(
        path,
        ["It was a bright cold day", "in April"],
        out,
        options=Options(threads=1, chunk=7, streaming=Streaming(budget, 2)),
        generation=Generation(30, ignore_eos=True),
    )
    replayed = run("replay", out, "--policy", "lru", "--validate", "--format", "json")
    (result,) = json.loads(replayed.stdout)["results"]
    assert result["cache_bytes"] == budget
    assert result["validation"]["mismatches"] == 0
    assert result["validation"]["lookups"] == 60 * tiny_models.TOP_K * len(
        tiny_models.MODELS[arch].moe_layers
    )
    trace = Trace.open(out)
    for name in ("lookups", "hits", "read_bytes"):
        assert result[name] == sum(totals_by_pass(trace, name).values())

    predicted = run("predict", out, "--predictor", "ctrl", "--format", "json")
    (result,) = json.loads(predicted.stdout)["results"]
    assert result["slot_accuracy"] == 1
    assert result["unscored"] == 60 * len(tiny_models.MODELS[arch].by_token)


def test_the_command_that_record_names(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    arguments = ["-p", "abc", "-n", "20", "--stream", "--cache-mib", "0.0332", "-o", out]
    stderr = run("record", model, *arguments).stderr
    program, *command = shlex.split(stderr.splitlines()[-1])
    assert program == "tracekit"
    (result,) = json.loads(run(*command, "--format", "json").stdout)["results"]
    assert result["cache_bytes"] == Trace.open(out).budget_bytes == round(0.0332 * 2**20)
    assert result["validation"]["lookups"] > 0
    assert result["validation"]["mismatches"] == 0
