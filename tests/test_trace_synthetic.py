"""Synthetic traces: repeatable, as real routing is, and consistent with their own router."""

import numpy as np
import pytest

from tracekit.trace import synthesize
from tracekit.trace.schema import DECODE, PREFILL


@pytest.fixture(scope="module")
def large():
    """A model as large as those that phones recorded: 48 layers, top-6 of 128 experts."""
    return synthesize(48, 128, 6, 128, prefill=28, logits=True, gate_inputs=True)


def selected(trace) -> np.ndarray:
    """Return which experts each decoded token selected, bool [tokens, layers, experts]."""
    rows = trace.routing(["phase", "experts"])
    experts = rows["experts"][rows["phase"] == DECODE].astype(int)
    experts = experts.reshape(-1, len(trace.moe_layers), trace.top_k)
    chosen = np.zeros((*experts.shape[:2], trace.n_expert), bool)
    np.put_along_axis(chosen, experts, True, axis=2)
    return chosen


def test_the_same_seed_gives_the_same_trace():
    assert synthesize(seed=3).digest == synthesize(seed=3).digest
    assert synthesize(seed=3).digest != synthesize(seed=4).digest


@pytest.mark.parametrize(
    ("lag", "low", "high"), [(1, 0.30, 0.46), (8, 0.18, 0.32), (32, 0.16, 0.30)]
)
def test_experts_recur_from_token_to_token_as_phones_recorded(large, lag, low, high):
    """A phone's top-6 of 128 repeated 38, 27 and 24 % of the experts 1, 8 and 32 tokens before."""
    chosen = selected(large)
    overlap = (chosen[lag:] & chosen[:-lag]).sum() / chosen[lag:].sum()
    assert low < overlap < high


def test_some_experts_are_popular(large):
    """On a phone the 16 most selected experts of a layer took 64 % of its routings."""
    counts = -np.sort(-selected(large).sum(axis=0), axis=1)
    assert 0.5 < counts[:, :16].sum() / counts.sum() < 0.8


def test_topics_drift():
    """What the first half of a long turn selected most is less popular in the second."""
    chosen = selected(synthesize(4, 64, 4, 4000))
    first, second = np.split(chosen, 2)
    hot = np.argsort(-first.sum(axis=0), axis=1)[:, :4]
    share = [
        np.take_along_axis(half.sum(axis=0), hot, 1).sum() / half.sum() for half in (first, second)
    ]
    assert share[1] < share[0]


def test_logits_are_the_routers_product_and_experts_its_largest(large):
    columns = ["layer", "gate_input", "logits", "experts", "weights"]
    rows = large.routing(columns)
    for layer in (0, 20, 47):
        here = rows["layer"] == layer
        logits = rows["gate_input"][here] @ large.layer_array(layer, "router_matrix").T
        np.testing.assert_allclose(rows["logits"][here], logits, atol=1e-5)
        order = np.argsort(-rows["logits"][here], axis=1)[:, :6]
        np.testing.assert_array_equal(rows["experts"][here], order)
        picked = np.exp(np.take_along_axis(rows["logits"][here], order, 1))
        expected = picked / picked.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(rows["weights"][here], expected, rtol=1e-5)


def test_gate_inputs_are_normalised_and_a_stale_one_names_most_experts(large):
    rows = large.routing(["phase", "gate_input"])
    inputs = rows["gate_input"][rows["phase"] == DECODE].reshape(128, 48, -1)
    np.testing.assert_allclose((inputs**2).mean(axis=2), 1, rtol=1e-3)
    chosen = selected(large)
    named = []
    for layer in range(1, 48):
        logits = inputs[:, layer - 1] @ large.layer_array(layer, "router_matrix").T
        guess = np.argpartition(-logits, 6, axis=1)[:, :6]
        named.append(np.take_along_axis(chosen[:, layer], guess, 1).mean())
    assert 0.65 < np.mean(named) < 0.9


def test_the_shape_of_turns_and_prefills():
    trace = synthesize(4, 8, 2, 7, n_turns=2, prefill=3, dense_layers=1)
    rows = trace.routing(["turn", "pass", "phase", "step", "layer"])
    first = rows["turn"] == 0
    prompt = first & (rows["phase"] == PREFILL)
    assert rows["layer"][prompt].tolist() == [1, 1, 1, 2, 2, 2, 3]
    assert rows["step"][prompt].tolist() == [0, 1, 2, 0, 1, 2, 2]
    assert rows["pass"][prompt].tolist() == [0] * 7
    assert rows["step"][first & ~prompt].tolist() == [3] * 3 + [4] * 3 + [5] * 3 + [6] * 3
    assert rows["pass"][rows["turn"] == 1].tolist() == [5] * 7 + [6] * 3 + [7] * 3 + [8] * 3
    assert trace.moe_layers.tolist() == [1, 2, 3]
    assert trace.steps(["step"])["step"].tolist() == [*range(7), *range(6)]


@pytest.mark.parametrize("prefill", [0, 1])
def test_one_layer_and_short_prompts(prefill):
    trace = synthesize(1, 4, 4, 5, n_turns=5, prefill=prefill)
    assert trace.n_turns == 5
    assert trace.n_rows == 5 * (1 + prefill)


def test_sizes_by_layer():
    assert synthesize(3, dense_layers=1, expert_bytes=[5, 6]).expert_bytes.tolist() == [5, 6]
    assert synthesize(2, expert_bytes=7).expert_bytes.tolist() == [7, 7]


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_k": 17},
        {"n_tokens": 0},
        {"dense_layers": 4},
        {"expert_bytes": [1]},
        {"n_tokens": 2, "n_turns": 3},
        {"prefill": -1},
    ],
)
def test_sizes_that_contradict_each_other(wrong):
    with pytest.raises(ValueError, match=r"needs|given|shared"):
        synthesize(**wrong)
