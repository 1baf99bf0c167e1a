"""Policies that act on a prediction, or leave experts out, against plain Python."""

from dataclasses import replace

import acting_reference as plain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from predict_traces import toy, trace_of

from tracekit.policies import (
    LRU,
    Batches,
    DropCold,
    FewerExperts,
    Guesses,
    Prefetch,
    Retention,
)
from tracekit.replaying import replay
from tracekit.replaying.batches import build_batches
from tracekit.replaying.guesses import guesses
from tracekit.trace import TraceError, UsageError


@st.composite
def runs(draw):
    """A short run of unequal layers, with guesses of any quality; some batches have none."""
    n_layers, n_expert = draw(st.integers(1, 3)), draw(st.integers(2, 6))
    k = draw(st.integers(1, min(3, n_expert)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    keys, starts, layer, turn, pass_id, phase, weights = [], [0], [], [], [], [], []
    n_pass = 0
    for t in range(draw(st.integers(1, 2))):
        for is_decode in [0, *[1] * draw(st.integers(1, 8))]:
            for at in range(n_layers):
                n = k if is_decode else rng.integers(1, n_expert + 1)
                chosen = rng.permutation(n_expert)[:n]
                keys += (at * n_expert + chosen).tolist()
                w = np.sort(rng.uniform(0.01, 1, n))[::-1]
                weights += (w if is_decode else np.full(n, np.nan)).tolist()
                starts.append(len(keys))
                layer.append(at)
                turn.append(t)
                pass_id.append(n_pass)
                phase.append(is_decode)
            n_pass += 1
    n_batches = len(layer)
    guess = np.full((n_batches, k), -1, np.int32)
    predicted = np.full((n_batches, k), np.nan, np.float32)
    for b in range(n_batches):
        if phase[b] and rng.random() < 0.85:
            following = (layer[b] + 1) % n_layers
            m = rng.integers(0, k + 1)
            guess[b, :m] = following * n_expert + rng.permutation(n_expert)[:m]
            w = np.sort(rng.uniform(0.01, 1, m))[::-1]
            predicted[b, :m] = w / w.sum() if m else w
    batches = Batches(
        keys=np.array(keys, np.int32),
        admit_rank=np.zeros(len(keys), np.uint16),
        batch_start=np.array(starts, np.int64),
        layer=np.array(layer, np.int32),
        turn=np.array(turn, np.int32),
        pass_id=np.array(pass_id, np.int32),
        step=np.array(pass_id, np.int32),
        phase=np.array(phase, np.uint8),
        expert_bytes=rng.integers(1, 9, n_layers).astype(np.int64),
        layer_ids=np.arange(n_layers, dtype=np.int16),
        n_expert=n_expert,
        top_k=k,
        weights=np.array(weights, np.float32),
        guesses=Guesses(guess, predicted),
    )
    budget = draw(st.integers(0, batches.bank_bytes + 1))
    return batches, budget


@given(runs())
@settings(max_examples=150, deadline=None)
def test_retention_equals_plain_python(run):
    batches, budget = run
    (cell,) = Retention().simulate(batches, np.array([budget]), per_lookup=True)
    expected = plain.retention(batches, budget)
    assert cell.hits.tolist() == expected["hits"]
    assert cell.resident_bytes.tolist() == expected["resident"]
    assert cell.counters["promoted"] == expected["promoted"]
    assert cell.hit.sum() == cell.hits.sum()


@given(runs(), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=200, deadline=None)
def test_prefetch_equals_plain_python_and_its_bytes_close(run, spec_max, drop_frac):
    batches, budget = run
    params = Prefetch.Params(spec_max=spec_max, drop_frac=drop_frac)
    (cell,) = Prefetch(params).simulate(batches, np.array([budget]), per_lookup=True)
    threshold = drop_frac / batches.top_k if drop_frac else None
    expected = plain.prefetch(batches, budget, spec_max, threshold)
    found = cell.counters
    assert cell.hits.tolist() == expected["hits"]
    assert cell.resident_bytes.tolist() == expected["resident"]
    assert cell.read_bytes.tolist() == expected["read"]
    assert found["demand_bytes"] == expected["demand_bytes"]
    assert found["speculative_useful_bytes"] == expected["useful_bytes"]
    assert found["speculative_wasted_bytes"] == expected["wasted_bytes"]
    assert found["speculative_reads"] == expected["reads"]
    assert found["speculative_useful"] == expected["useful"]
    assert found["speculative_skipped"] == expected["skipped"]
    assert found["evicted_by_speculation"] == expected["evicted"]
    assert found["promoted"] == expected["promoted"]
    # Every byte read was asked for, or guessed rightly, or guessed wrongly.
    assert cell.read_bytes.sum() == (
        found["demand_bytes"]
        + found["speculative_useful_bytes"]
        + found["speculative_wasted_bytes"]
    )
    assert cell.lookups is None  # those of LRU
    sizes = batches.expert_bytes[batches.layer]
    demand = ((batches.lookups - cell.hits) * sizes).sum()
    assert demand == found["demand_bytes"]
    assert (cell.resident_bytes <= np.maximum(budget, batches.lookups * sizes)).all()


@given(runs())
@settings(max_examples=50, deadline=None)
def test_prefetch_that_reads_nothing_is_retention(run):
    batches, budget = run
    (ahead,) = Prefetch(Prefetch.Params(spec_max=0)).simulate(batches, np.array([budget]))
    (kept,) = Retention().simulate(batches, np.array([budget]))
    assert ahead.hits.tolist() == kept.hits.tolist()
    assert ahead.counters["speculative_reads"] == 0
    assert ahead.counters["useful_share"] is None


@given(runs())
@settings(max_examples=50, deadline=None)
def test_without_guesses_both_are_lru(run):
    batches, budget = run
    silent = replace(batches, guesses=Guesses(np.full_like(batches.guesses.keys, -1)))
    (lru,) = LRU().simulate(batches, np.array([budget]))
    for policy in (Retention(), Prefetch()):
        (cell,) = policy.simulate(silent, np.array([budget]))
        assert cell.hits.tolist() == lru.hits.tolist()
        assert cell.resident_bytes.tolist() == lru.resident_bytes.tolist()


@given(runs(), st.sampled_from([0.0, 0.5, 0.75, 1.0, 3.0]), st.booleans())
@settings(max_examples=150, deadline=None)
def test_drop_cold_equals_plain_python(run, frac, static):
    batches, budget = run
    policy = DropCold(DropCold.Params(frac=frac, static=static))
    (cell,) = policy.simulate(batches, np.array([budget]), per_lookup=True)

    def leaves_out(share, rank, heaviest, is_resident):
        return not is_resident and not heaviest and share < frac / batches.top_k

    _check_lossy(cell, plain.lossy(batches, budget, leaves_out, static))


@given(runs(), st.booleans(), st.data())
@settings(max_examples=150, deadline=None)
def test_fewer_experts_equals_plain_python(run, static, data):
    batches, budget = run
    keep = data.draw(st.integers(1, batches.top_k))
    policy = FewerExperts(FewerExperts.Params(keep=keep, static=static))
    (cell,) = policy.simulate(batches, np.array([budget]), per_lookup=True)

    def leaves_out(share, rank, heaviest, is_resident):
        return rank >= keep

    _check_lossy(cell, plain.lossy(batches, budget, leaves_out, static))


def _check_lossy(cell, expected):
    assert cell.hits.tolist() == expected["hits"]
    assert cell.lookups.tolist() == expected["lookups"]
    assert cell.hit.sum() == cell.hits.sum()
    for name in ("dropped", "saved_bytes", "saved_share", "mass_lost"):
        assert cell.counters[name] == pytest.approx(expected[name], abs=1e-6), name


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
    from tracekit.formats import open_any

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
    from tracekit.analysis import hit_rate_gains
    from tracekit.replaying import replay

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


def test_gains_part_what_is_waited_for_from_what_is_read_ahead(monkeypatch):
    from tracekit.analysis import hit_rate_gains
    from tracekit.replaying import replay
    from tracekit.replaying.guesses import guesses

    predicted = []
    monkeypatch.setattr(
        "tracekit.replaying.guesses.guesses",
        lambda *given: predicted.append(given) or guesses(*given),
    )
    trace = trace_of(toy())
    params = Prefetch.Params("oracle", spec_max=1)
    policies = ["lru", Retention(Retention.Params("oracle")), Prefetch(params)]
    frame = hit_rate_gains(trace, policies, cache_bytes=[10_000])
    assert len(predicted) == 1  # both act on the same guesses
    records = replay(trace, policies, cache_bytes=10_000).records
    assert len(predicted) == 2
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
    from tracekit.analysis import hit_rate_gains

    with pytest.raises(UsageError, match=f"{policy} cannot be compared lookup by lookup"):
        hit_rate_gains(trace_of(toy()), [policy], [0.5])


def test_more_than_the_first_k_are_never_read_ahead():
    trace = trace_of(toy())
    budgets = {"cache_bytes": 4 * int(trace.expert_bytes.max())}
    values = [trace.top_k, 10**30]
    prefetch = {"prefetch.predictor": "oracle", "prefetch.spec_max": values}
    k, many = replay(trace, "prefetch", params=prefetch, **budgets).records
    assert k | {"params": None} == many | {"params": None}
