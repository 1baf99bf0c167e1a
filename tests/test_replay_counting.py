"""What counts in a replay: skipped tokens, a cache warmed by another trace, budgets in slots."""

import json
from dataclasses import replace

import numpy as np
import pytest
from cache_runs import EXAMPLES, Run, cases, runs
from cli_helpers import run
from families import few_and_all
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from recorded_runs import drafted, rejecting
from reference import ORACLES

import tracekit
from tracekit.policies import POLICIES, Prefetch, load_policy
from tracekit.replaying import build_batches, replay
from tracekit.replaying.counting import without_first
from tracekit.replaying.warming import Warm, warmed_by
from tracekit.studies import sweep
from tracekit.trace import UsageError, synthesize, write_trace
from tracekit.trace.errors import TraceError

MIB = 2**20
ONLINE = ["lru", "lfu", "ring", "layer-lru", "layer-lfu"]
WITHOUT_MORE = few_and_all(c.name for c in POLICIES if not (c.needs_predictor or c.lossy))


def halves(whole: Run) -> tuple[Run, Run]:
    """Divide a run at a turn, or at a pass if it has one turn: another trace of the same model."""
    turns = [turn for turn, *_ in whole.passes]
    cut = turns.index(turns[-1]) or len(turns) // 2
    first, second = (replace(whole, passes=p) for p in (whole.passes[:cut], whole.passes[cut:]))
    assume(first.layer_sizes == second.layer_sizes == whole.sizes)
    assume(first.trace().digest != second.trace().digest)
    return first, second


@pytest.fixture(scope="module")
def small():
    return synthesize(3, 12, 2, 90, prefill=6, n_turns=3)


@pytest.fixture(scope="module")
def other():
    return synthesize(3, 12, 2, 20, prefill=4, n_turns=2, seed=1)


# ---- skipped tokens -----------------------------------------------------------------------------


def counts(loads, skip):
    """Say of each load whether it is of a decoded token after the first `skip` of its turn."""
    seen, found = {}, []
    for load in loads:
        passes = seen.setdefault(load.turn, {})
        if load.decode:
            passes.setdefault(load.number, len(passes))
        found.append(load.decode and passes[load.number] >= skip)
    return found


@settings(max_examples=EXAMPLES, deadline=None)
@given(whole=runs(), skip=st.integers(0, 3))
def test_the_first_tokens_of_each_turn_are_in_no_decode_figure(whole, skip):
    trace, counted = whole.trace(), counts(whole.loads, skip)
    budgets = [0, 5, 40]
    if skip and not any(counted):
        with pytest.raises(UsageError, match=f"skip = {skip} leaves no decoded token of"):
            replay(trace, ONLINE, cache_bytes=budgets, skip=skip)
        return
    rows = replay(trace, ONLINE, cache_bytes=budgets, skip=skip, per_layer=True).rows
    plain = replay(trace, ONLINE, cache_bytes=budgets, per_layer=True).rows
    for row, unskipped in zip(rows, plain, strict=True):
        oracle = ORACLES[row.policy].replay(whole.loads, whole.layer_sizes, row.budget)
        kept = [i for i, is_counted in enumerate(counted) if is_counted]
        missed = [len(whole.loads[i].distinct) - len(oracle.hits[i]) for i in kept]
        assert row.lookups_decode == sum(len(whole.loads[i].distinct) for i in kept)
        assert row.hits_decode == sum(len(oracle.hits[i]) for i in kept)
        assert row.read_bytes_decode == sum(
            n * whole.sizes[whole.loads[i].layer] for n, i in zip(missed, kept, strict=True)
        )
        assert sum(layer.hits_decode for layer in row.layers) == row.hits_decode
        assert sum(layer.lookups_decode for layer in row.layers) == row.lookups_decode
        for name in ("lookups", "hits", "read_bytes", "peak_resident_bytes", "gap_to_bound"):
            assert getattr(row, name) == getattr(unskipped, name)


def test_times_and_tokens_are_of_what_counts(small):
    given = {"cache_fraction": 0.3, "flash_mib_s": 100}
    result = replay(small, ["lru", "bound"], skip=10, **given)
    assert result.config["tokens_decode"] == result.config["passes_decode"] == 60
    assert replay(small, "lru", **given).config["tokens_decode"] == 90
    for row in result.rows:
        busy = 1e3 * row.read_bytes_decode / MIB / 100 / 60
        assert row.flash_ms_per_token_decode == pytest.approx(busy)
    text = result.to_text()
    assert "60 decoded tokens that count, of 90" in text
    assert "skip: the first 10 decoded tokens of each turn" in text


def test_a_turn_with_fewer_tokens_counts_none():
    passes = [(0, True, t, {0: [(t % 2,)]}) for t in range(2)]
    passes += [(1, True, t, {0: [(t % 2,)]}) for t in range(5)]
    trace = Run({0: 1}, 2, 1, tuple(passes)).trace()
    result = replay(trace, "lru", cache_bytes=2, skip=3)
    assert (result.config["tokens_decode"], result.rows[0].lookups_decode) == (2, 2)


def test_a_pass_of_several_tokens_counts_if_it_begins_after_those_that_are_skipped():
    """Four tokens a pass, of which those that were rejected are no decoded tokens."""
    trace = rejecting(drafted())
    batches = build_batches(trace)
    steps = trace.steps(["turn", "pass", "phase"])
    stayed = {}  # of each turn: its passes, and how many of their tokens stayed
    for turn, number, phase, kept in zip(*steps.values(), trace.kept, strict=True):
        if phase == 1:
            of_turn = stayed.setdefault(int(turn), {})
            of_turn[int(number)] = of_turn.get(int(number), 0) + int(kept)
    assert max(max(of_turn.values()) for of_turn in stayed.values()) > 1
    for skip in (1, 3, 4, 5, 20):
        counted_passes, tokens = set(), 0
        for of_turn in stayed.values():
            before = 0
            for number, n in of_turn.items():
                if before >= skip:
                    counted_passes.add(number)
                    tokens += n
                before += n
        counted = without_first(trace, skip)
        found = counted.marked(batches)
        assert (counted.passes, counted.tokens) == (len(counted_passes), tokens)
        of_decode = found.phase == 1
        assert {*found.pass_id[found.counted_decode].tolist()} == counted_passes
        assert not (found.counted_decode & ~of_decode).any()


# ---- a warm cache -------------------------------------------------------------------------------


@settings(max_examples=EXAMPLES, deadline=None)
@given(whole=runs(), budget=st.sampled_from([0, 3, 12, 60]))
def test_what_warms_the_cache_is_replayed_first_and_counts_nowhere(whole, budget):
    """Two traces one after the other are one run, of which the second part counts."""
    first, second = halves(whole)
    rows = replay(
        second.trace(), ONLINE, cache_bytes=budget, warm=first.trace(), per_layer=True
    ).rows
    loads, begins = whole.loads, len(first.loads)
    for row in rows:
        oracle = ORACLES[row.policy].replay(loads, whole.layer_sizes, budget)
        counted = range(begins, len(loads))
        assert row.lookups == sum(len(loads[i].distinct) for i in counted)
        assert row.hits == sum(len(oracle.hits[i]) for i in counted)
        assert row.hits_decode == sum(len(oracle.hits[i]) for i in counted if loads[i].decode)
        assert row.peak_resident_bytes == max(oracle.resident[begins:])
        assert sum(layer.hits for layer in row.layers) == row.hits


@pytest.mark.parametrize("policies", WITHOUT_MORE)
@settings(max_examples=EXAMPLES, deadline=None)
@given(whole=runs(), budget=st.sampled_from([0, 3, 12, 60]), skip=st.integers(0, 1))
def test_no_policy_is_above_the_bound_of_what_counts(policies, whole, budget, skip):
    first, second = halves(whole)
    trace = second.trace()
    if skip and not any(counts(second.loads, skip)):
        return
    given = {"cache_bytes": budget, "skip": skip, "warm": first.trace()}
    for row in replay(trace, policies, **given).rows:
        assert row.gap_to_bound is None or row.gap_to_bound >= 0
        assert row.gap_to_bound_decode is None or row.gap_to_bound_decode >= 0


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(), cut=st.integers(0, 10), spec_max=st.integers(0, 3))
def test_counters_are_of_what_counts(case, cut, spec_max):
    """What is known of the whole run and of its beginning alone gives what the rest adds."""
    batches = case.batches
    warm = min(cut, len(batches))
    beginning = batches.only(np.arange(warm))
    beginning = replace(
        beginning,
        guesses=replace(batches.guesses, keys=batches.guesses.keys[:warm], weights=None),
    )
    masked = replace(batches, warming=np.arange(len(batches)) < warm)
    for policy in (Prefetch(Prefetch.Params(spec_max=spec_max)), load_policy("retention")):
        all_cells, cells, begun = (
            policy.simulate(run, np.array(case.budgets)) for run in (batches, masked, beginning)
        )
        for whole, counted, first in zip(all_cells, cells, begun, strict=True):
            assert (whole.hits == counted.hits).all()
            for name in ("promoted", "demand_bytes", "speculative_reads", "speculative_skipped"):
                if name in whole.counters:
                    assert counted.counters[name] == whole.counters[name] - first.counters[name]
            if policy.speculative:
                parts = ("demand_bytes", "speculative_useful_bytes", "speculative_wasted_bytes")
                read = counted.read_bytes[warm:].sum()
                assert read == sum(counted.counters[name] for name in parts)
                assert counted.counters["speculative_wasted_bytes"] >= 0


def test_a_policy_acts_on_its_predictor_in_the_warm_part_too(small, other):
    params = {"retention.predictor": "prev-token", "prefetch.predictor": "prev-token"}
    given = {"cache_fraction": 0.3, "params": params, "warm": other}
    rows = replay(small, ["retention", "prefetch", "lru"], **given).rows
    alone = replay(small, ["retention", "prefetch", "lru"], **given | {"warm": None}).rows
    for warm, cold in zip(rows, alone, strict=True):
        assert warm.lookups == cold.lookups
        assert warm.hits > cold.hits  # the first uses of many experts are in the other trace
    batches = build_batches(other)
    joined = warmed_by(batches, build_batches(small))
    assert joined.counted.sum() == len(joined) - len(batches)
    assert (np.diff(joined.batch_start) == joined.lookups).all()
    assert joined.rows.shape[0] == joined.row_start[-1]
    starts = joined.row_start[len(batches) :] - batches.row_start[-1]
    assert (starts == build_batches(small).row_start).all()
    assert (joined.turn[: len(batches)] < 0).all()


def test_what_leaves_experts_out_saves_and_loses_what_counts():
    trace = tracekit.open_trace("bundled:tiny-moe-64e.trace")
    rows, plain = (
        {skip: replay(trace, name, cache_fraction=0.25, skip=skip).rows[0] for skip in (0, 20, 40)}
        for name in ("drop-cold", "lru")
    )
    dropped = [row.counters["dropped"] for row in rows.values()]
    assert dropped == sorted(dropped, reverse=True)
    assert len(set(dropped)) == 3
    for skip, row in rows.items():
        assert row.counters["saved_bytes"] == plain[skip].read_bytes_decode - row.read_bytes_decode


def test_another_model_or_the_same_routings_cannot_warm_up(small):
    with pytest.raises(TraceError, match=r"cannot fill the cache for .* n_expert = 16, not 12"):
        replay(small, "lru", cache_fraction=0.5, warm=synthesize(3, 16, 2, 5))
    with pytest.raises(UsageError, match=r"holds the same routings as .*; give another trace"):
        replay(small, "lru", cache_fraction=0.5, warm=small)
    bigger = synthesize(3, 12, 2, 5, expert_bytes=12345)
    with pytest.raises(TraceError, match="its experts have other sizes"):
        Warm.of(bigger, small, build_batches(small))


def test_a_warm_replay_is_not_compared_with_a_recording(small, other):
    with pytest.raises(UsageError, match="began with an empty cache"):
        replay(small, "lru", cache_fraction=0.5, warm=other, validate=True)


# ---- budgets in slots ---------------------------------------------------------------------------


def lru_of_entries(loads, layer, entries):
    """One layer's own cache of so many entries; what a load asks for stays until it ends."""
    cache, hits = [], []
    for load in loads:
        if load.layer != layer:
            continue
        hits.append(sum(key in cache for key in load.recency))
        cache = [key for key in cache if key not in load.recency] + load.recency
        while len(cache) > max(entries, len(load.recency)):
            cache.pop(0)
    return hits


@settings(max_examples=EXAMPLES, deadline=None)
@given(whole=runs(), slots=st.integers(0, 6))
def test_a_layer_holds_exactly_its_slots(whole, slots):
    """Whatever the sizes of the layers are."""
    slots = min(slots, whole.n_expert)
    (row,) = replay(whole.trace(), "layer-lru", cache_slots=slots, per_layer=True).rows
    for layer in row.layers:
        assert layer.hits == sum(lru_of_entries(whole.loads, layer.layer, slots))
    assert row.cache_bytes == slots * sum(whole.layer_sizes.values())
    assert row.cache_slots == slots


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None)
@given(whole=runs(), slots=st.integers(0, 6))
def test_other_policies_have_the_bytes_of_all_slots(whole, slots):
    slots, trace = min(slots, whole.n_expert), whole.trace()
    policies = ["lru", "lfu", "belady", "bound"]
    in_slots = replay(trace, policies, cache_slots=slots).records
    in_bytes = replay(trace, policies, cache_bytes=slots * sum(whole.layer_sizes.values())).records
    for one, same in zip(in_slots, in_bytes, strict=True):
        assert (one.pop("cache_slots"), same.pop("cache_slots")) == (slots, None)
        assert one == same


def test_slots_need_no_sizes(small):
    lengths = {"lengths": [6, 6], "prompt_lengths": [2, 2]}
    experts = np.random.default_rng(0).permuted(np.tile(np.arange(8), (12, 3, 1)), axis=2)[:, :, :2]
    unsized = tracekit.from_arrays(experts, n_expert=8, **lengths)
    sized = tracekit.from_arrays(experts, n_expert=8, expert_bytes=1000, **lengths)
    policies = ["lru", "layer-lfu", "bound"]
    rows = replay(unsized, policies, cache_slots=[2, 4]).rows
    for row, same in zip(rows, replay(sized, policies, cache_slots=[2, 4]).rows, strict=True):
        assert row.hits == same.hits
        assert (row.cache_bytes, row.cache_slots) == (None, same.cache_slots)
        assert row.cache_fraction == same.cache_fraction == row.cache_slots / 8


@pytest.mark.parametrize("slots", [-1, 13, 2.5, True, "2"])
def test_slots_are_experts_of_a_layer(small, slots):
    with pytest.raises(UsageError, match=r"cache_slots takes whole numbers .* from 0 to all 12"):
        replay(small, "lru", cache_slots=slots)


def test_slots_and_sizes_are_not_mixed(small):
    with pytest.raises(UsageError, match=r"in slots .* or as sizes, not as both"):
        replay(small, "lru", cache_slots=2, cache_mib=1)


# ---- the command line and studies ---------------------------------------------------------------


def test_the_command_line_takes_all_of_them(tmp_path, small, other):
    for name, trace in (("a", small), ("b", other)):
        write_trace(trace, tmp_path / f"{name}.trace")
    given = ("--cache-slots", "2,4", "--skip", "3", "--warm", tmp_path / "b.trace")
    policies = ("--policy", "lru,layer-lru,bound")
    found = json.loads(
        run("replay", tmp_path / "a.trace", *policies, *given, "--format", "json").out
    )
    assert [row["cache_slots"] for row in found["results"]] == [2, 4] * 3
    assert found["config"]["skip"] == 3
    assert found["config"]["warm"].endswith("b.trace")
    assert found["config"]["cache_slots"] == [2, 4]
    table = run("replay", tmp_path / "a.trace", *policies, *given).out
    assert "b.trace was replayed first" in table
    assert "a layer" in table
    for option in (("--skip", "3"), ("--pin-from", tmp_path / "counts.json")):
        refused = run("replay", tmp_path / "a.trace", "--policy", "prev-token", *option)
        assert refused.code == 2
        assert "are for cache policies" in refused.err


STUDY = """
title = "Counted"
[traces.a]
file = "a.trace"
[traces.b]
file = "b.trace"
[[run]]
traces = ["a"]
policies = ["lru", "bound"]
cache_slots = [2]
skip = 5
warm = "b"
[[run]]
traces = ["a"]
policies = ["lru"]
cache_slots = [2]
[[claim]]
says = "warm is better"
figure = "hit_rate_cumulative"
of = { policy = "lru", warm = "b" }
minus = { warm = "", skip = 0 }
above = 0
"""


def test_a_study_takes_all_of_them(tmp_path, small, other):
    for name, trace in (("a", small), ("b", other)):
        write_trace(trace, tmp_path / f"{name}.trace")
    (tmp_path / "s.toml").write_text(STUDY)
    result = sweep(tmp_path / "s.toml")
    assert result.all_claims_hold
    assert result.frame[["skip", "warm"]].to_numpy().tolist() == [[5, "b"], [5, "b"], [0, ""]]
    assert result.frame["params"].tolist() == ["", "prices=100", ""]
    (tmp_path / "t.toml").write_text(STUDY.replace('traces = ["a"]\n', "", 1))
    with pytest.raises(UsageError, match="warms up on 'b' and replays it too"):
        sweep(tmp_path / "t.toml")
