"""Popularity, overlap, concentration and working set against plain-Python counts."""

import math
from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pytest
from families import slow_unless
from routing_traces import make_trace, routings

from tracekit import analysis
from tracekit.formats import open_any
from tracekit.trace import Trace, TraceError, UsageError, synthesize, write_trace

TRACES = {
    "several turns": {},
    "one layer": {"n_layer": 1},
    "dense layers before": {"layers": (2, 3, 5)},
    "one token": {"n_turns": 1, "decode": 1},
    "no prefill": {"prefill": 0},
    "wide": {"n_expert": 70, "top_k": 5},
    "top-1": {"top_k": 1},
}


@pytest.fixture(params=TRACES.values(), ids=TRACES.keys())
def trace(request):
    return make_trace(**request.param)


@pytest.mark.parametrize("phase", [None, "decode", "prefill"])
def test_popularity_counts_every_selection(phase):
    trace = make_trace()
    counts = Counter(
        (r.layer, expert)
        for r in routings(trace)
        if phase is None or r.phase == phase
        for expert in r.experts
    )
    frame = analysis.expert_popularity(trace, phase)
    assert len(frame) == len(trace.moe_layers) * trace.n_expert
    for row in frame.itertuples():
        assert row.selections == counts[row.layer, row.expert]
    assert frame.groupby("layer")["share"].sum().to_numpy() == pytest.approx(1)
    for _, layer in frame.groupby("layer"):
        ranked = layer.sort_values("rank")
        assert list(ranked["rank"]) == list(range(trace.n_expert))
        order = sorted(layer["expert"], key=lambda e: (-counts[layer["layer"].iloc[0], e], e))
        assert list(ranked["expert"]) == order


def test_popularity_of_a_phase_that_is_not_there():
    with pytest.raises(TraceError, match="no prefill token"):
        analysis.expert_popularity(make_trace(prefill=0), "prefill")
    with pytest.raises(UsageError, match="'prefill' or 'decode', not 'decoding'"):
        analysis.expert_popularity(make_trace(), "decoding")


def test_overlap_compares_tokens_of_one_turn_and_layers_of_one_token(trace):
    by_place = {
        (r.turn, r.step, r.layer): set(r.experts) for r in routings(trace) if r.phase == "decode"
    }
    layers = sorted({layer for _, _, layer in by_place})
    shared = defaultdict(list)
    for (turn, step, layer), experts in by_place.items():
        for lag in range(1, 5):
            if (turn, step - lag, layer) in by_place:
                shared["token", lag].append(len(experts & by_place[turn, step - lag, layer]))
            place = layers.index(layer) - lag
            if place >= 0:
                shared["layer", lag].append(len(experts & by_place[turn, step, layers[place]]))
    frame = analysis.overlap_by_lag(trace, max_lag=4)
    assert {(r.direction, r.lag) for r in frame.itertuples()} == set(shared)
    for row in frame.itertuples():
        pairs = shared[row.direction, row.lag]
        assert row.pairs == len(pairs)
        assert row.overlap == pytest.approx(sum(pairs) / len(pairs) / trace.top_k)
        assert row.overlap_p10 <= row.overlap_p90
        assert row.chance == trace.top_k / trace.n_expert


def test_a_lag_beyond_the_trace_costs_nothing():
    frame = analysis.overlap_by_lag(synthesize(2, 8, 2, 5), max_lag=1 << 50)
    assert list(zip(frame["direction"], frame["lag"], frame["pairs"], strict=True)) == [
        *(("token", lag, 2 * (5 - lag)) for lag in range(1, 5)),
        ("layer", 1, 5),
    ]


def test_overlap_needs_a_lag():
    with pytest.raises(UsageError, match="1 or more, not 0"):
        analysis.overlap_by_lag(make_trace(), max_lag=0)


def entropy(shares):
    return -sum(p * math.log2(p) for p in shares if p > 0)


def test_concentration_is_entropy_of_loads_and_of_weights(trace):
    loads, entropies, tops = defaultdict(Counter), defaultdict(list), defaultdict(list)
    for r in routings(trace):
        if r.phase == "decode":
            loads[r.layer].update(r.experts)
            shares = [w / sum(r.weights) for w in r.weights]
            entropies[r.layer].append(entropy(shares))
            tops[r.layer].append(max(shares))
    frame = analysis.routing_concentration(trace)
    assert list(frame["layer"]) == sorted(loads)
    for row in frame.itertuples():
        load = loads[row.layer]
        bits = entropy([n / load.total() for n in load.values()])
        assert row.load_entropy_bits == pytest.approx(bits)
        assert row.load_entropy == pytest.approx(bits / math.log2(trace.n_expert))
        assert row.effective_experts == pytest.approx(2**bits)
        assert row.top_load_share == pytest.approx(max(load.values()) / load.total())
        mean = sum(entropies[row.layer]) / len(entropies[row.layer])
        assert row.weight_entropy_bits == pytest.approx(mean, abs=1e-6)
        assert row.top1_share == pytest.approx(sum(tops[row.layer]) / len(tops[row.layer]))
        if trace.top_k == 1:
            assert math.isnan(row.weight_entropy)


def test_unknown_weights_are_left_out_not_taken_for_zero():
    weights = make_trace().routing(["weights"])["weights"].copy()
    whole = analysis.routing_concentration(make_trace())
    weights[:, 1] = np.nan
    none = analysis.routing_concentration(make_trace(weights=weights))
    assert none["top1_share"].isna().all()
    assert none["weight_entropy_bits"].isna().all()
    assert none["load_entropy_bits"].equals(whole["load_entropy_bits"])


def test_working_set_since_the_start(trace):
    size = dict(zip(trace.moe_layers.tolist(), trace.expert_bytes.tolist(), strict=True))
    seen, after, decoded = set(), {}, {}
    tokens = set()
    for r in routings(trace):
        seen |= {(r.layer, expert) for expert in r.experts}
        if r.phase == "decode":
            tokens.add((r.turn, r.step))
        after[r.pass_id] = set(seen)
        decoded[r.pass_id] = len(tokens)
    frame = analysis.working_set(trace).query("span == 'since the start'")
    assert len(frame) == len(after)
    for row, pass_id in zip(frame.itertuples(), sorted(after), strict=True):
        assert row.distinct_experts == len(after[pass_id])
        assert row.distinct_bytes == sum(size[layer] for layer, _ in after[pass_id])
        assert row.tokens == decoded[pass_id]
        assert row.bank_bytes == sum(size.values()) * trace.n_expert


def test_working_set_of_windows(trace):
    size = dict(zip(trace.moe_layers.tolist(), trace.expert_bytes.tolist(), strict=True))
    touched = defaultdict(set)
    for r in routings(trace):
        if r.phase == "decode":
            touched[r.turn, r.step] |= {(r.layer, expert) for expert in r.experts}
    tokens = [touched[place] for place in sorted(touched)]
    frame = analysis.working_set(trace).query("span == 'in a window'")
    assert list(frame["tokens"]) == list(range(1, len(tokens) + 1))
    for row in frame.itertuples():
        windows = [
            set.union(*tokens[i : i + row.tokens]) for i in range(len(tokens) - row.tokens + 1)
        ]
        assert row.distinct_experts == pytest.approx(sum(map(len, windows)) / len(windows))
        total = sum(size[layer] for window in windows for layer, _ in window)
        assert row.distinct_bytes == pytest.approx(total / len(windows))
    assert frame["distinct_bytes"].iloc[0] == pytest.approx(frame["token_cycle_bytes"].iloc[0])


@pytest.mark.parametrize(
    "question",
    [analysis.overlap_by_lag, analysis.routing_concentration, analysis.working_set],
)
def test_a_trace_without_a_decoded_token_says_so(question):
    with pytest.raises(TraceError, match="holds no decoded token; record with -n 1 or more"):
        question(make_trace(decode=0))


@pytest.mark.parametrize("n_decoded", [0, 1])
def test_an_imported_trace_is_not_to_be_recorded_with_more_tokens(n_decoded, tmp_path):
    path = tmp_path / "x.csv"
    rows = [(0, "prefill"), (1, "prefill"), (2, "decode")][: 2 + n_decoded]
    lines = [f"{token},0,{expert},{phase}" for token, phase in rows for expert in (1, 2)]
    path.write_text("\n".join(["token,layer,expert,phase", *lines, ""]))
    wanted = ["a generated token", "2 generated tokens"][n_decoded]
    with pytest.raises(TraceError, match=rf"; import a run with {wanted} \(phase decode\) or more"):
        analysis.overlap_by_lag(open_any(path))


# Those of the fast suite: of a trace, of its routing, of a replay, of a predictor.
@pytest.mark.parametrize(
    "question",
    slow_unless(
        [
            analysis.accuracy_by_history,
            analysis.accuracy_by_horizon,
            analysis.accuracy_by_layer,
            analysis.default_budget,
            analysis.expert_popularity,
            analysis.hit_rate_curves,
            analysis.hit_rate_gains,
            analysis.overlap_by_lag,
            analysis.read_bytes_by_token,
            analysis.recall_by_named,
            analysis.residency_timeline,
            analysis.reuse_distance,
            analysis.routing_concentration,
            analysis.working_set,
        ],
        analysis.default_budget,
        analysis.expert_popularity,
        analysis.residency_timeline,
        analysis.accuracy_by_layer,
    ),
    ids=lambda question: question.__name__,
)
def test_a_trace_may_be_given_by_its_name(question, tmp_path):
    path = tmp_path / "run.trace"
    write_trace(synthesize(3, 8, 2, 6, 2, 3, gate_inputs=True), path)
    by_name, by_path, opened = (question(each) for each in (str(path), path, Trace.open(path)))
    if question is analysis.default_budget:
        assert by_name == by_path == opened
    else:
        pd.testing.assert_frame_equal(by_name, opened)
        pd.testing.assert_frame_equal(by_path, opened)
