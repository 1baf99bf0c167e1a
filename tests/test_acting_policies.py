"""Policies that act on a prediction or leave experts out: their guesses, weights and figures."""

from dataclasses import replace

import numpy as np
import pytest
from cache_runs import EXAMPLES, cases
from hypothesis import given, settings
from predict_traces import toy, trace_of

from tracekit.analysis import hit_rate_gains
from tracekit.formats import open_any
from tracekit.policies import LRU, DropCold, FewerExperts, Guesses, Prefetch, Retention
from tracekit.predictors.oracle import Oracle
from tracekit.replaying import replay
from tracekit.replaying.batches import build_batches
from tracekit.replaying.guesses import guesses
from tracekit.trace import TraceError, UsageError


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases())
def test_prefetch_that_reads_nothing_is_retention(case):
    batches, budgets = case.batches, np.array(case.budgets)
    without_reads = Prefetch(Prefetch.Params(spec_max=0)).simulate(batches, budgets)
    for cell, same in zip(without_reads, Retention().simulate(batches, budgets), strict=True):
        assert cell.hits.tolist() == same.hits.tolist()
        assert cell.counters["speculative_reads"] == 0
        assert cell.counters["useful_share"] is None


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases())
def test_without_guesses_both_are_lru(case):
    batches, budgets = case.batches, np.array(case.budgets)
    silent = replace(batches, guesses=Guesses(np.full_like(batches.guesses.keys, -1)))
    lru = LRU().simulate(batches, budgets)
    for policy in (Retention(), Prefetch()):
        for cell, same in zip(policy.simulate(silent, budgets), lru, strict=True):
            assert cell.hits.tolist() == same.hits.tolist()
            assert cell.resident_bytes.tolist() == same.resident_bytes.tolist()


def test_dropping_nothing_is_lru():
    batches = build_batches(trace_of(toy()), weights=True)
    budgets = np.array([0, 20_000, 60_000])
    lru = LRU().simulate(batches, budgets)
    for policy in (DropCold(DropCold.Params(frac=0)), FewerExperts(FewerExperts.Params(keep=4))):
        for cell, same in zip(policy.simulate(batches, budgets), lru, strict=True):
            assert cell.hits.tolist() == same.hits.tolist()
            assert cell.counters["saved_bytes"] == cell.counters["dropped"] == 0


def test_the_perfect_predictor_wastes_nothing():
    trace = trace_of(toy(turns=(60, 60)))
    batches = build_batches(trace)
    source = Prefetch.Params("oracle", spec_max=4)
    acting = replace(batches, guesses=guesses(trace, batches, source))
    # Room for two layers' batches, so that what is read ahead can stand beside what is in use.
    (cell,) = Prefetch(source).simulate(acting, np.array([2 * 4 * 1100]))
    assert cell.counters["speculative_wasted_bytes"] == 0
    assert cell.counters["useful_share"] == 1.0
    # Only the first layer of each turn's first token was not known ahead.
    decode = batches.phase == 1
    missed = (batches.lookups - cell.hits)[decode]
    assert missed.sum() == missed[(batches.step[decode] == 5) & (batches.layer[decode] == 0)].sum()


@pytest.mark.parametrize(("accuracy", "top_k"), [(0.3, 4), (0.75, 4), (0, 4), (0.5, 13)])
def test_an_oracle_that_errs_is_right_as_often_as_asked(accuracy, top_k):
    run = toy(turns=(400, 300), top_k=top_k)
    trace = trace_of(run)
    batches = build_batches(trace)
    found = guesses(trace, batches, Prefetch.Params(f"oracle@accuracy={accuracy}"), seed=3)
    decode = batches.phase == 1
    keys = found.keys[decode].reshape(700, 4, top_k)[:, :3]  # after the layers before the last
    named = keys - (np.arange(1, 4) * 16)[:, None]
    for routing in named.reshape(-1, top_k):
        kept = routing[routing >= 0]
        assert len(set(kept)) == len(kept)
        assert len(kept) == top_k or top_k > 16 - top_k  # there are not as many others
    right = (named[..., None] == run.experts[:, 1:, None]).any(-1) & (keys >= 0)
    assert right.mean() == pytest.approx(accuracy, abs=0.02)
    again = guesses(trace, batches, Prefetch.Params(f"oracle@accuracy={accuracy}"), seed=3)
    assert np.array_equal(found.keys, again.keys)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("oracle@0.5", "are written NAME@FIELD=VALUE, each once.*'0.5' cannot be read so"),
        ("oracle@accuracy=0.5@accuracy=0.7", "each once.*'accuracy=0.7' cannot be read so"),
        ("@", "No predictor is called ''"),
        ("oracle@accuracy=2", "accuracy is a share from 0 to 1"),
        ("oracle@luck=1", "oracle has no parameter 'luck'; it has: accuracy"),
        ("prev-token@x=1", "prev-token has no parameter 'x'; it has none"),
        ("orakel@accuracy=1", "did you mean 'oracle'"),
    ],
)
def test_a_predictors_parameters_in_its_name(name, sentence):
    trace = trace_of(toy())
    with pytest.raises(UsageError, match=sentence):
        guesses(trace, build_batches(trace), Prefetch.Params(name))


@pytest.mark.parametrize("predictor", ["stale-gate", "prev-token", "oracle", "embedding-gate"])
def test_guesses_stand_after_the_batch_before(predictor):
    run = toy(turns=(6, 4))
    trace = trace_of(run)
    batches = build_batches(trace)
    found = guesses(trace, batches, Retention.Params(predictor, 2))
    assert (found.keys[batches.phase == 0] == -1).all()
    for b in np.flatnonzero(batches.phase == 1):
        layer = int(batches.layer[b]) + 1
        t = int(np.flatnonzero((run.turn == batches.turn[b]) & (run.step == batches.step[b]))[0])
        if layer == 4:
            layer, t = 0, t + 1
        lasting = t < len(run.turn) and run.turn[t] == batches.turn[b]
        previous = lasting and t > 0 and run.turn[t - 1] == run.turn[t]
        if not lasting or (predictor == "stale-gate" and layer < 2):
            expected = None
        elif predictor == "prev-token":
            expected = run.experts[t - 1, layer] if previous else None
        elif predictor == "oracle":
            expected = run.experts[t, layer]
        else:
            vector = run.gate_input[t, layer - 2]
            if predictor == "embedding-gate":
                x = run.embedding[t]
                vector = x / np.sqrt((x**2).mean() + 1e-6) * run.norm_weight[layer]
            expected = np.argsort(-(run.matrix[layer] @ vector), kind="stable")[:4]
        if expected is None:
            assert (found.keys[b] == -1).all()
            assert np.isnan(found.weights[b]).all()
        else:
            assert found.keys[b].tolist() == (layer * 16 + expected.astype(int)).tolist()
            assert found.weights[b].sum() == pytest.approx(1, abs=1e-5)


def test_guesses_from_a_layer_back():
    run = toy(turns=(9, 8), n_layers=5)
    run.experts[:, 3:] = run.experts[:, 1:3]
    trace = trace_of(run)
    batches = build_batches(trace)
    found = guesses(trace, batches, Prefetch.Params("layer-lag", horizon=2))
    decode = batches.phase == 1
    keys = found.keys[decode].reshape(17, 5, 4)  # by the layer after which they stand
    weights = found.weights[decode].reshape(17, 5, 4)
    for layer in (3, 4):
        np.testing.assert_array_equal(keys[:, layer - 1], layer * 16 + run.experts[:, layer - 2])
        np.testing.assert_allclose(weights[:, layer - 1], run.weights[:, layer - 2], rtol=1e-5)
    # Two layers ahead, layers 0 and 1 have no layer to look back to.
    assert (keys[:, [0, 4]] == -1).all()
    assert np.isnan(weights[:, [0, 4]]).all()


def test_predicted_weights_are_those_of_the_models_gate():
    run = toy(gating="sigmoid", biased=True)
    trace = trace_of(run)
    batches = build_batches(trace)
    found = guesses(trace, batches, Retention.Params("stale-gate", 1))
    b = int(np.flatnonzero((batches.phase == 1) & (batches.layer == 1))[3])
    logits = run.matrix[2] @ run.gate_input[3, 1]
    gates = 1 / (1 + np.exp(-logits[found.keys[b] - 2 * 16]))
    np.testing.assert_allclose(found.weights[b], gates / gates.sum(), rtol=1e-5)


def test_a_learned_source_says_nothing_while_it_trains():
    trace = trace_of(toy(turns=(40,)))
    batches = build_batches(trace)
    found = guesses(trace, batches, Retention.Params("static-hot", 1)).keys
    named = (found >= 0).all(axis=1).reshape(-1, 4)[1:]  # without the prefill
    assert not named[:19].any()
    # The guess for token 20's first layer stands after token 19's last.
    assert named[20:-1].all()


def test_drop_aware_prefetch_needs_weights():
    trace = trace_of(toy())
    batches = build_batches(trace)
    source = Prefetch.Params("random-guess", drop_frac=0.5)
    acting = replace(batches, guesses=guesses(trace, batches, source))
    with pytest.raises(UsageError, match=r"prefetch.drop_frac needs predicted weights.*random"):
        Prefetch(source).simulate(acting, np.array([10_000]))


def test_drop_cold_needs_weights():
    run = toy()
    run.weights[17, 2, 1] = np.nan
    batches = build_batches(trace_of(run), weights=True)
    with pytest.raises(TraceError) as error:
        DropCold().simulate(batches, np.array([10_000]))
    assert str(error.value) == (
        "drop-cold needs the weight of every expert of a decoded token, and the trace does not "
        "have it in turn 0, step 22, layer 2; leave drop-cold out, or record again."
    )
    (cell,) = FewerExperts().simulate(batches, np.array([10_000]))
    assert cell.counters["mass_lost"] is None


@pytest.mark.parametrize("keep", [0, 5])
def test_fewer_experts_keeps_some(keep):
    batches = build_batches(trace_of(toy()), weights=True)
    with pytest.raises((UsageError, ValueError), match="keep"):
        FewerExperts(FewerExperts.Params(keep=keep)).simulate(batches, np.array([1]))


# ---- what was published of the phone traces ---------------------------------------------------


@pytest.fixture(scope="module")
def qwen(phone_traces):
    return open_any(phone_traces / "traces" / "qwen.route.csv")


@pytest.mark.parametrize(
    ("policy", "saved", "lost"),
    [
        (DropCold(DropCold.Params(frac=1.0, static=True)), "66.1", "9.46"),
        (DropCold(DropCold.Params(frac=0.75, static=True)), "36.8", "4.44"),
        (FewerExperts(FewerExperts.Params(keep=5, static=True)), "23.2", "10.60"),
    ],
)
def test_published_static_figures(qwen, policy, saved, lost):
    batches = build_batches(qwen, weights=True)
    (cell,) = policy.simulate(batches, np.array([4000 << 20]))
    assert f"{100 * cell.counters['saved_share']:.1f}" == saved
    assert f"{100 * cell.counters['mass_lost']:.2f}" == lost


# ---- gains with intervals ---------------------------------------------------------------------


def test_gains_are_the_difference_of_the_hit_rates():
    trace = trace_of(toy(turns=(60, 50, 40)))
    oracle = Prefetch(Prefetch.Params("oracle"))
    frame = hit_rate_gains(trace, ["lru", oracle], [0.3, 0.6])
    records = replay(trace, ["lru", oracle], cache_fraction=[0.3, 0.6]).records
    for row, record in zip(frame.to_dict("records"), records, strict=True):
        assert row["policy"] == record["policy"]
        assert row["cache_bytes"] == record["cache_bytes"]
        assert row["hit_rate_decode"] == pytest.approx(record["hit_rate_decode"])
    same, better = frame[frame["policy"] == "lru"], frame[frame["policy"] == "prefetch"]
    assert (same[["gain", "ci95_low", "ci95_high"]] == 0).all(axis=None)
    assert (better["ci95_low"] > 0).all()
    assert ((better["ci95_low"] <= better["gain"]) & (better["gain"] <= better["ci95_high"])).all()


class CountedOracle(Oracle):
    """Perfect guesses, which counts how often somebody asks for them."""

    name = "counted-oracle"
    asked = 0

    def __init__(self, *given):
        super().__init__(*given)
        CountedOracle.asked += 1


def test_gains_part_what_is_waited_for_from_what_is_read_ahead():
    trace, source = trace_of(toy()), f"{__name__}:CountedOracle"
    params = Prefetch.Params(source, spec_max=1)
    policies = ["lru", Retention(Retention.Params(source)), Prefetch(params)]
    CountedOracle.asked = 0
    frame = hit_rate_gains(trace, policies, cache_bytes=[10_000])
    assert CountedOracle.asked == 1  # both act on the same guesses
    records = replay(trace, policies, cache_bytes=10_000).records
    assert CountedOracle.asked == 2
    for row, record in zip(frame.to_dict("records"), records, strict=True):
        assert row["cache_fraction"] == 10_000 / build_batches(trace).bank_bytes
        read = row["demand_bytes_decode"] + row["speculative_bytes_decode"]
        assert read == record["read_bytes_decode"]
        waits = record.get("demand_bytes_decode", record["read_bytes_decode"])
        assert row["demand_bytes_decode"] == waits
    assert frame["speculative_bytes_decode"].tolist()[:2] == [0, 0]
    assert frame["speculative_bytes_decode"].iloc[2] > 0


@pytest.mark.parametrize("policy", ["drop-cold", "bound"])
def test_gains_compare_what_can_be_compared(policy):
    with pytest.raises(UsageError, match=f"{policy} cannot be compared lookup by lookup"):
        hit_rate_gains(trace_of(toy()), [policy], [0.5])


def test_more_than_the_first_k_are_never_read_ahead():
    trace = trace_of(toy())
    budgets = {"cache_bytes": 4 * int(trace.expert_bytes.max())}
    values = [trace.top_k, 10**15]
    prefetch = {"prefetch.predictor": "oracle", "prefetch.spec_max": values}
    k, many = replay(trace, "prefetch", params=prefetch, **budgets).records
    assert k | {"params": None} == many | {"params": None}
