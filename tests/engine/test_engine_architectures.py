"""Every way of routing: what is recorded, that streaming changes no bit, that a rule reproduces it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from families import slow_unless
from runs import greedy, replay_lru, totals_by_pass

from tracekit.trace import Trace
from tracekit_engine import Generation, Options, Streaming, record
from tracekit_engine.model_file import ModelFile

# In the fast suite one of each family: no gate before the experts' scores, groups and a bias, layers that
# select by the token. What follows from a recording is tried on the last of them.
FAMILIES = ("gpt-oss", "deepseek2", "deepseek4")
ARCHITECTURES = slow_unless(tiny_models.MODELS, "deepseek4")
PROMPTS = ["The quick brown fox", "jumps over the lazy dog"]


def recorded(path: Path, out: Path, streaming: Streaming | None = None) -> Trace:
    options = Options(threads=1, chunk=8, streaming=streaming)
    record(path, PROMPTS, out, options=options, generation=Generation(12, ignore_eos=True))
    return Trace.open(out)


def chosen_by_the_rule(trace: Trace, layer: int, gate_input: np.ndarray) -> np.ndarray:
    """Select experts by the rule that the trace names, written here a second time."""
    model = trace.facts.model
    logits = gate_input @ trace.layer_array(layer, "router_matrix").T
    router_bias = trace.layer_array(layer, "router_bias")
    if router_bias is not None:
        logits = logits + router_bias
    if model.gating == "sigmoid":
        scores = 1 / (1 + np.exp(-logits))
    elif model.gating == "softmax":
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
    elif model.gating == "sqrt-softplus":
        scores = np.sqrt(np.log1p(np.exp(logits)))
    else:
        scores = logits
    selection_bias = trace.layer_array(layer, "selection_bias")
    if selection_bias is not None:
        scores = scores + selection_bias
    if model.n_group > 1:
        groups = scores.reshape(len(scores), model.n_group, -1)
        strength = np.sort(groups, axis=2)[:, :, -2:].sum(axis=2)
        weakest = np.argsort(strength, axis=1)[:, : model.n_group - model.n_group_used]
        np.put_along_axis(groups, weakest[:, :, None], -np.inf, axis=1)
        scores = groups.reshape(scores.shape)
    return np.argsort(-scores, axis=1, kind="stable")[:, : model.top_k]


@pytest.mark.parametrize("arch", slow_unless(tiny_models.MODELS, *FAMILIES))
def test_what_is_recorded_is_what_the_model_did(
    arch: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    trace = recorded(tiny_model(arch), tmp_path / "run.trace")
    tiny = tiny_models.MODELS[arch]

    assert trace.moe_layers.tolist() == list(tiny.moe_layers)
    assert trace.facts.model.gating == tiny.gating
    assert (trace.n_expert, trace.top_k) == (tiny_models.EXPERTS, tiny_models.TOP_K)
    assert not trace.has("residency")
    rows = trace.routing(["layer", "experts", "logits", "gate_input", "weights"])
    for layer in sorted({*tiny.moe_layers} - {*tiny.by_token}):
        at = rows["layer"] == layer
        gate_input = rows["gate_input"][at]
        product = gate_input @ trace.layer_array(layer, "router_matrix").T
        bias = trace.layer_array(layer, "router_bias")
        assert np.abs(product + (0 if bias is None else bias) - rows["logits"][at]).max() < 1e-4
        chosen = chosen_by_the_rule(trace, layer, gate_input)
        assert np.array_equal(np.sort(chosen), np.sort(rows["experts"][at].astype(int)))
    assert np.isfinite(rows["weights"]).all()
    assert len(np.unique(rows["experts"])) == tiny_models.EXPERTS


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_embedding_is_the_tokens_row_or_a_multiple(
    arch: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tiny_model(arch)
    trace = recorded(path, tmp_path / "run.trace")
    stored = ModelFile.open(path).tensors["token_embd.weight"]
    raw = path.read_bytes()[stored.start : stored.stop]
    table = np.frombuffer(raw, np.float32).reshape(-1, tiny_models.D)
    steps = trace.steps(["token", "embedding"])
    factor = steps["embedding"] / table[steps["token"]]
    assert np.allclose(factor, factor[0, 0], rtol=1e-5)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_streamed_is_resident_to_the_bit(
    arch: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tiny_model(arch)
    file = ModelFile.open(path)
    one_layer = file.n_expert * max(file.expert_bytes.values())
    resident = greedy(path, Options(threads=1, chunk=4), 24)
    streaming = Streaming(cache_bytes=one_layer, lanes=2)
    assert greedy(path, Options(threads=1, chunk=4, streaming=streaming), 24) == resident


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_store_does_what_a_replay_says(
    arch: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = tiny_model(arch)
    budget = 4 * tiny_models.TOP_K * max(ModelFile.open(path).expert_bytes.values())
    trace = recorded(path, tmp_path / "run.trace", Streaming(cache_bytes=budget, lanes=2))
    expected = replay_lru(trace, budget)
    assert np.array_equal(trace.routing(["residency"])["residency"], expected.residency)
    for name in ("lookups", "hits", "read_bytes"):
        found = totals_by_pass(trace, name)
        assert found == {number: getattr(expected, name).get(number, 0) for number in found}
    assert expected.peak_bytes <= budget
