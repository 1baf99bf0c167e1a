"""Experts that a bias of −inf masks, as pruned models have them: recorded, scored, never selected."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from typer.testing import CliRunner, Result

from tracekit.cli.app import app
from tracekit.trace import Trace, TracekitError
from tracekit_engine import Generation, Options, Session, record

BIASES = {
    "glm4moe": "exp_probs_b.bias",
    "deepseek2": "exp_probs_b.bias",
    "gpt-oss": "ffn_gate_inp.bias",
}


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result


def biased(
    value: float, experts: tuple[int, ...], bias: str
) -> Callable[[str, np.ndarray], np.ndarray]:
    def change(name: str, values: np.ndarray) -> np.ndarray:
        if name.endswith(bias):
            values[list(experts)] = value
        return values

    return change


@pytest.mark.parametrize(
    "arch",
    [pytest.param(a, marks=pytest.mark.slow) for a in BIASES],
)
def test_a_masked_expert_is_never_selected(arch: str, tmp_path: Path) -> None:
    # Of deepseek2's groups of two, one whole group: a group without its two best is never taken.
    masked = (2, 3) if arch == "deepseek2" else (1, 6)
    change = biased(-np.inf, masked, BIASES[arch])
    path = tiny_models.write(tmp_path / "pruned.gguf", arch, change=change)
    out = tmp_path / "run.trace"
    options = Options(threads=1, chunk=7)
    for prompts, name in ((["abc", "de"], "run.trace"), (["wxyz"] * 3, "train.trace")):
        generation = Generation(300, ignore_eos=True)
        record(path, prompts, tmp_path / name, options=options, generation=generation)
    trace = Trace.open(out)
    rows = trace.routing(["experts", "logits"])
    assert not np.isin(rows["experts"], masked).any()
    assert set(np.unique(rows["experts"])) == set(range(8)) - set(masked)
    in_logits = arch == "gpt-oss"
    assert ((rows["logits"][:, masked] == -np.inf) == in_logits).all()

    # Every predictor that a recording can feed, those that fit logits too.
    document = json.loads(run("predict", out, "--format", "json").stdout)
    results = {result["predictor"]: result for result in document["results"]}
    assert results["ctrl"]["slot_accuracy"] == 1
    assert {"stale-gate-fit", "combined", "embedding-gate"} <= set(results)
    trained = run("predict", out, "--train", tmp_path / "train.trace", "--format", "json")
    for result in json.loads(trained.stdout)["results"]:
        assert result["routings"], result["predictor"]
    acting = [f"--param={policy}.horizon=1" for policy in ("retention", "prefetch")]
    run("replay", out, "--policy", "lru,retention,prefetch", "--cache-mib", "0.1", *acting)


def test_the_shared_model(phone_traces: Path, tmp_path: Path) -> None:
    out = tmp_path / "glm.trace"
    run("record", phone_traces / "cases" / "neginf_glm.gguf", "-p", "abc", "-n", "40", "-o", out)
    (ctrl,) = json.loads(run("predict", out, "--predictor", "ctrl", "--format", "json").stdout)[
        "results"
    ]
    assert (ctrl["slot_accuracy"], ctrl["routings"]) == (1, 80)


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("arch", BIASES)
def test_a_bias_that_is_no_number(arch: str, value: float, tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "odd.gguf", arch, change=biased(value, (3,), BIASES[arch]))
    with pytest.raises(TracekitError, match=rf"bias of layer \d is {value}|not finite numbers"):
        Session(path)


@pytest.mark.parametrize("arch", BIASES)
def test_fewer_experts_unmasked_than_a_token_uses(arch: str, tmp_path: Path) -> None:
    change = biased(-np.inf, tuple(range(7)), BIASES[arch])
    path = tiny_models.write(tmp_path / "odd.gguf", arch, change=change)
    with pytest.raises(
        TracekitError, match=r"mask all but 1 of its experts .* selects 2; give --n"
    ):
        Session(path)
    if arch != "deepseek2":  # where a group needs two
        Session(path, Options(n_expert_used=1)).close()
