"""Reuse distances, curves, reads and residency against plain Python and against `replay`."""

import json
from collections import defaultdict
from functools import partial

import numpy as np
import pandas as pd
import pytest
from routing_traces import make_trace, routings

from tracekit import analysis
from tracekit.formats import open_any
from tracekit.policies import load_policy
from tracekit.replaying import replay
from tracekit.replaying.from_disk import rows_from_disk
from tracekit.routing.blocks import decode_blocks
from tracekit.trace import Trace, TraceError, UsageError, synthesize, write_trace

TRACES = {
    "several turns": {},
    "one layer": {"n_layer": 1},
    "dense layers before": {"layers": (2, 3, 5)},
    "no prefill": {"prefill": 0},
}


@pytest.fixture(params=TRACES.values(), ids=TRACES.keys())
def trace(request):
    return make_trace(decode=20, **request.param)


def lookups(trace):
    """Return (phase, keys in the order of their last touch) of each batch, and each key's size."""
    size = dict(zip(trace.moe_layers.tolist(), trace.expert_bytes.tolist(), strict=True))
    batches = defaultdict(list)
    for r in routings(trace):
        batches[r.pass_id, r.layer, r.phase] += [(r.layer, expert) for expert in r.experts]
    for (_, _, phase), keys in batches.items():
        last_touch = list(dict.fromkeys(reversed(keys)))[::-1]
        yield phase, last_touch, size


def byte_distances(trace):
    """Return the byte depth of every decode lookup in the LRU stack; None for a first use."""
    stack, distances = [], []  # the most recent last
    for phase, keys, size in lookups(trace):
        for key in keys:
            if phase == "decode":
                depth = None
                if key in stack:
                    depth = sum(size[layer] for layer, _ in stack[stack.index(key) :])
                distances.append(depth)
        stack = [key for key in stack if key not in keys] + keys
    return distances


def test_reuse_distance_in_bytes_is_the_depth_of_the_stack():
    trace = make_trace(decode=20)
    distances = byte_distances(trace)
    frame = analysis.reuse_distance(trace, cache_bytes=9000)
    for row in frame.itertuples():
        if np.isinf(row.high):
            assert row.lookups == distances.count(None)
        else:
            within = [d for d in distances if d is not None and row.low < d <= row.high]
            assert row.lookups == len(within)
    assert frame["lookups"].sum() == len(distances)
    assert frame["share"].sum() == pytest.approx(1)
    assert frame["cumulative"].iloc[-1] == 1
    assert (frame["budget_bytes"] == 9000).all()


def test_reuse_distance_in_tokens_is_the_gap_between_uses(trace):
    token, last, gaps = -1, {}, []
    place = None
    for r in routings(trace):
        if r.phase == "decode":
            if (r.turn, r.step) != place:
                place = (r.turn, r.step)
                token += 1
            for expert in r.experts:
                key = (r.layer, expert)
                gaps.append(token - last[key] if key in last else None)
                last[key] = token
    frame = analysis.reuse_distance(trace, "tokens")
    for row in frame.itertuples():
        if np.isinf(row.high):
            assert row.lookups == gaps.count(None)
        else:
            assert row.lookups == sum(g is not None and row.low < g <= row.high for g in gaps)
    assert frame["lookups"].sum() == len(gaps)


def test_reuse_distance_in_another_unit():
    with pytest.raises(UsageError, match="'bytes' or 'tokens', not 'ticks'"):
        analysis.reuse_distance(make_trace(), "ticks")


def test_curves_are_those_of_replay_and_end_at_the_ceiling(trace):
    frame = analysis.hit_rate_curves(trace, ["lru", "belady", "bound"])
    budgets = frame["cache_bytes"].unique()
    again = replay(trace, ["lru", "belady", "bound"], cache_bytes=budgets.tolist()).frame
    assert (frame["hit_rate_decode"] == again["hit_rate_decode"]).all()
    seen, decode, first = set(), 0, 0
    for phase, keys, _ in lookups(trace):
        if phase == "decode":
            decode += len(keys)
            first += len(set(keys) - seen)
        seen |= set(keys)
    whole = frame[frame["cache_bytes"] == frame["cache_bytes"].max()]
    assert len(whole) == 3
    assert whole["hit_rate_decode"].to_numpy() == pytest.approx(1 - first / decode)
    assert whole["ceiling_decode"].to_numpy() == pytest.approx(1 - first / decode)
    assert whole["ceiling_cumulative"].to_numpy() == pytest.approx(whole["hit_rate_cumulative"])


def test_curves_show_the_cliff_of_lru():
    frame = analysis.hit_rate_curves(make_trace(decode=30), ["lru"])
    cycle = frame["token_cycle_bytes"].iloc[0]
    cliff = cycle - 2 * 1500  # k experts of the largest size
    assert {cliff, cycle} <= set(frame["cache_bytes"])
    assert (frame.query("cache_bytes <= @cliff")["hit_rate_decode"] == 0).all()
    assert (frame.query("cache_bytes >= @cycle")["hit_rate_decode"] > 0).all()


def test_several_parameters_of_a_policy_are_several_curves():
    frame = analysis.hit_rate_curves(
        make_trace(), ["random"], [5000], params={"random.seed": [1, 2]}
    )
    assert list(frame["params"]) == [{"seed": 1}, {"seed": 2}]


@pytest.mark.parametrize("policy", ["lru", "layer-lru", "belady", "drop-cold"])
def test_a_timeline_adds_up_to_the_replay(trace, policy):
    budget = 6000
    frame = analysis.residency_timeline(trace, policy, budget)
    total = replay(trace, policy, cache_bytes=budget).frame.iloc[0]
    assert frame["lookups"].sum() == total["lookups_decode"]
    assert frame["hits"].sum() + frame["prefetched"].sum() == total["hits_decode"]
    assert frame["read_bytes"].sum() == total["read_bytes_decode"]
    assert (frame["lookups"] == frame["hits"] + frame["misses"] + frame["prefetched"]).all()
    places = [(r.turn, r.step, r.layer) for r in routings(trace) if r.phase == "decode"]
    assert list(zip(frame["turn"], frame["step"], frame["layer"], strict=True)) == places
    assert frame["token"].nunique() == 40
    assert frame["token"].is_monotonic_increasing


def test_a_timeline_takes_a_policy_with_parameters():
    trace = make_trace()
    dropped = analysis.residency_timeline(trace, load_policy("drop-cold", {"frac": 2.0}), 6000)
    kept = analysis.residency_timeline(trace, load_policy("drop-cold", {"frac": 0.0}), 6000)
    assert dropped["lookups"].sum() < kept["lookups"].sum()


def test_a_recorded_timeline_counts_the_recorded_residency():
    plain = make_trace()
    residency = np.random.default_rng(1).integers(0, 3, (plain.n_rows, 2)).astype(np.uint8)
    trace = make_trace(residency=residency)
    decode = residency[trace.routing(["phase"])["phase"] == 1]
    frame = analysis.residency_timeline(trace, "recorded")
    for name, code in (("misses", 0), ("hits", 1), ("prefetched", 2)):
        assert (frame[name] == (decode == code).sum(axis=1)).all()
    assert frame["cache_bytes"].isna().all()
    tokens = analysis.read_bytes_by_token(trace)
    assert list(tokens["policy"].unique()) == ["lru", "belady", "recorded"]
    recorded = tokens.query("policy == 'recorded'")
    assert recorded["read_bytes"].sum() == frame["read_bytes"].sum()
    assert recorded["hits"].sum() == (decode > 0).sum()


def test_a_recorded_timeline_leaves_out_what_was_dropped():
    rng = np.random.default_rng(1)
    n_rows = make_trace().n_rows
    residency, dropped = rng.integers(0, 2, (2, n_rows, 2)).astype(np.uint8)
    trace = make_trace(residency=residency, dropped=dropped)
    decode = trace.routing(["phase"])["phase"] == 1
    missed = (residency[decode] == 0) & (dropped[decode] == 0)
    frame = analysis.residency_timeline(trace, "recorded")
    assert (frame["misses"] == missed.sum(axis=1)).all()
    assert frame["lookups"].sum() == (dropped[decode] == 0).sum()
    sizes = dict(zip(trace.moe_layers, trace.expert_bytes, strict=True))
    assert (frame["read_bytes"] == frame["misses"] * frame["layer"].map(sizes)).all()


def test_reads_by_token_add_up_to_the_replay(trace):
    frame = analysis.read_bytes_by_token(trace, ["lru", "lfu"], 6000)
    total = replay(trace, ["lru", "lfu"], cache_bytes=6000).frame.set_index("policy")
    for policy, rows in frame.groupby("policy"):
        assert len(rows) == 40
        assert rows["read_bytes"].sum() == total.loc[policy, "read_bytes_decode"]
        assert rows["hits"].sum() == total.loc[policy, "hits_decode"]


def test_what_a_timeline_cannot_show():
    with pytest.raises(TraceError, match="does not say what the engine found resident"):
        analysis.residency_timeline(make_trace(), "recorded")
    with pytest.raises(UsageError, match="bound has totals only"):
        analysis.residency_timeline(make_trace(), "bound")
    with pytest.raises(UsageError, match="did you mean 'lru'"):
        analysis.residency_timeline(make_trace(), "lruu")
    with pytest.raises(TraceError, match="holds no decoded token"):
        analysis.residency_timeline(make_trace(decode=0), "lru")


def test_the_default_budget_is_the_recorded_one_or_a_quarter():
    trace = make_trace()
    assert analysis.default_budget(trace) == (1000 + 1500 + 1000) * 8 // 4
    assert (analysis.residency_timeline(trace)["cache_bytes"] == 7000).all()


def test_a_timeline_tells_hits_that_were_read_ahead():
    trace = make_trace(n_turns=1, decode=30)
    perfect = load_policy("prefetch", {"predictor": "oracle", "horizon": 1})
    frame = analysis.residency_timeline(trace, perfect, 10_000)
    total = replay(trace, perfect, cache_bytes=10_000).frame.iloc[0]
    assert frame["prefetched"].sum() == total["speculative_useful"] > 0
    assert frame["hits"].sum() + frame["prefetched"].sum() == total["hits_decode"]
    assert frame["read_bytes"].sum() == total["read_bytes_decode"]


@pytest.mark.parametrize("size", [-1, 1.5, 2**70])
def test_a_budget_that_is_none(size):
    trace = make_trace()
    for ask in (
        lambda: analysis.residency_timeline(trace, "lru", size),
        lambda: analysis.read_bytes_by_token(trace, ["lru"], size),
        lambda: analysis.reuse_distance(trace, cache_bytes=size),
        lambda: analysis.hit_rate_curves(trace, ["lru"], [size]),
    ):
        with pytest.raises(UsageError, match="cache_bytes takes"):
            ask()
    with pytest.raises(UsageError, match="cache_fraction takes numbers from 0 to 1"):
        analysis.hit_rate_gains(trace, ["lfu"], [size])


def test_gains_at_no_budget():
    with pytest.raises(UsageError, match="no cache budget"):
        analysis.hit_rate_gains(make_trace(), ["lfu"], [])


def test_one_name_or_number_stands_for_a_list():
    trace = make_trace()
    size = 4000
    pairs = [
        (analysis.hit_rate_curves, ("lru,lfu", size), (["lru", "lfu"], [size])),
        (analysis.hit_rate_gains, ("lfu", 0.5), (["lfu"], [0.5])),
        (analysis.read_bytes_by_token, ("lru", size), (["lru"], size)),
        (analysis.accuracy_by_layer, ("prev-token",), (["prev-token"],)),
        (analysis.recall_by_named, ("prev-token", 3), (["prev-token"], [3])),
    ]
    for ask, one, several in pairs:
        pd.testing.assert_frame_equal(ask(trace, *one), ask(trace, *several))


def test_a_working_set_is_the_same_whatever_the_blocks(monkeypatch):
    trace = synthesize(3, 8, 2, 20, 2, prefill=9)
    whole = analysis.working_set(trace)
    blocks = Trace.iter_routing

    def in_small_blocks(self, columns, phase=None):
        size = 5 if phase is None else 3  # of decoding alone whole passes come: a row a layer
        for rows in blocks(self, columns, phase):
            for start in range(0, len(next(iter(rows.values()))), size):
                yield {name: values[start : start + size] for name, values in rows.items()}

    monkeypatch.setattr(Trace, "iter_routing", in_small_blocks)
    pd.testing.assert_frame_equal(analysis.working_set(trace), whole)


@pytest.mark.parametrize(
    "ask",
    [
        analysis.overlap_by_lag,
        analysis.routing_concentration,
        partial(analysis.reuse_distance, unit="tokens"),
    ],
)
def test_other_answers_are_the_same_whatever_the_blocks(ask, monkeypatch):
    trace = synthesize(3, 8, 2, 40, 2, prefill=9)
    whole = ask(trace)
    monkeypatch.setattr("tracekit.routing.blocks.BLOCK_SCORES", 5 * trace.n_expert)
    assert max(map(len, decode_blocks(trace))) == 5  # fewer tokens than the largest lag
    pd.testing.assert_frame_equal(ask(trace), whole, check_exact=True)


def test_reuse_distance_from_disk_is_that_in_memory(tmp_path, monkeypatch):
    write_trace(synthesize(3, 8, 2, 40, 2, prefill=9), tmp_path / "x.trace")
    found = [analysis.reuse_distance(tmp_path / "x.trace")]
    read = []

    def spy(*given):
        read.append(given)
        return rows_from_disk(*given)

    monkeypatch.setattr("tracekit.analysis.reuse.rows_from_disk", spy)
    monkeypatch.setattr("tracekit.replaying.memory.MOST_OF_MEMORY", 0)
    found.append(analysis.reuse_distance(tmp_path / "x.trace"))
    assert len(read) == 1
    pd.testing.assert_frame_equal(*found, check_exact=True)


@pytest.fixture
def opened(tmp_path):
    """Opens a trace with one layer: its lines are (pass, token, experts, kept)."""

    def opened(name, lines):
        rows = [
            {"token": token, "pass": number, "layer": 0, "experts": experts, "phase": "decode"}
            | {"kept": kept, "expert_bytes": 100}
            for number, token, experts, kept in lines
        ]
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return open_any(path)

    return opened


DRAFTED = [(0, 0, [1, 2], 1), (1, 1, [3, 4], 1), (1, 2, [1, 5], 0), (2, 2, [1, 3], 1)]
DRAFTED += [(3, 3, [2, 5], 1)]


def test_reuse_distance_in_tokens_leaves_out_rejected_drafts(opened):
    whole = opened("x.jsonl", DRAFTED)
    assert whole.kept.tolist() == [True, True, False, True, True]
    stayed = [line for line in DRAFTED if line[3]]
    pd.testing.assert_frame_equal(
        analysis.reuse_distance(whole, "tokens"),
        analysis.reuse_distance(opened("y.jsonl", stayed), "tokens"),
    )


def test_windows_hold_what_rejected_drafts_touched(opened):
    frame = analysis.working_set(opened("x.jsonl", DRAFTED)).query("span == 'in a window'")
    touched = [set(line[2]) for line in DRAFTED]
    of_width = [
        [set.union(*touched[i : i + width]) for i in range(len(touched) - width + 1)]
        for width in range(1, len(touched) + 1)
    ]
    means = [sum(map(len, windows)) / len(windows) for windows in of_width]
    assert frame["distinct_experts"].tolist() == pytest.approx(means)
