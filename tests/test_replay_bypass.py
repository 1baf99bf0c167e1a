"""Admission: what a replay says where the engine may drop at once what it has just used."""

import json
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from cache_runs import Run, cases
from cli_helpers import run
from families import few_and_all
from hypothesis import given, settings

from tracekit import analysis, open_trace
from tracekit.policies import LRU, POLICIES, PlainPolicy
from tracekit.replaying import replay
from tracekit.report import build_report
from tracekit.studies import sweep
from tracekit.trace import UsageError, synthesize, write_trace

MIB = 2**20
# Two experts in turns, and room for one of them.
IN_TURNS = Run({0: MIB}, 2, 1, tuple((0, True, t, {0: [(t % 2,)]}) for t in range(20))).trace()
WITHOUT_MORE = few_and_all(c.name for c in POLICIES if not (c.needs_predictor or c.lossy))


class PinsTheFirst(PlainPolicy):
    """Keep expert 0 whatever comes, if it may."""

    name = "pins-the-first"

    def victim(self, evictable):
        return max(evictable)


class Watches(PlainPolicy):
    """LRU that writes down what it is shown."""

    name = "watches"
    seen: ClassVar[list] = []

    def victim(self, evictable):
        self.seen.append((self.batch, tuple(evictable)))
        return next(iter(evictable))


class KeepsItsLoads(PlainPolicy):
    name = "keeps-its-loads"
    can_bypass = False

    def victim(self, evictable):
        return next(iter(evictable))


class OverItsBudget(LRU):
    """Takes twice its budget."""

    name = "over-its-budget"

    def simulate(self, batches, budgets, per_lookup=False):
        cells = super().simulate(batches, 2 * budgets, per_lookup)
        return [replace(cell, budget_bytes=cell.budget_bytes // 2) for cell in cells]


def rates(trace, policies, **choices):
    """Decode hit rates in percent by policy."""
    records = replay(trace, policies, **choices).records
    return {record["policy"]: round(100 * record["hit_rate_decode"], 1) for record in records}


def test_pinning_one_of_two_experts_is_no_more_than_the_bound_allows():
    policies = ["lru", "belady", PinsTheFirst(), "bound"]
    assert set(rates(IN_TURNS, policies, cache_mib=1).values()) == {0}
    found = rates(IN_TURNS, policies, cache_mib=1, bypass=True)
    assert found == {"lru": 0, "pins-the-first": 45, "belady": 45, "bound": 45}


def test_dropping_at_once_beats_the_bound_of_what_keeps_its_loads(phone_traces):
    trace = open_trace(phone_traces / "traces" / "bundled-2026-11.trace")
    keeps = rates(trace, ["belady", "bound"], cache_mib=[0.5])
    drops = rates(trace, ["belady", "bound"], cache_mib=[0.5], bypass=True)
    assert keeps == {"belady": 34.8, "bound": 34.8}
    assert drops == {"belady": 36.4, "bound": 36.4}
    wider = rates(trace, ["bound"], cache_mib=[2.4], bypass=True)
    assert wider == {"bound": 74.1}


@pytest.mark.parametrize("policies", WITHOUT_MORE)
@settings(max_examples=15, deadline=None)
@given(case=cases())
def test_a_row_that_is_compared_with_the_bound_is_under_it(policies, case):
    """Whatever the policy: in shares, over its budget in a prompt only, or under a routing."""
    result = replay(
        case.run.trace(),
        policies,
        cache_bytes=case.budgets,
        bypass=case.bypass,
    )
    limits = {r["cache_bytes"]: r for r in result.records if r["policy"] == "bound"}
    for record in result.records:
        if case.bypass and record["policy"] != "bound":
            assert not record["over_budget"]
        if record["gap_to_bound"] is None:
            continue
        assert record["gap_to_bound"] >= 0
        assert record["gap_to_bound_decode"] is None or record["gap_to_bound_decode"] >= 0
        if record["bound_class"] == "layer-shares":
            continue
        limit = limits[record["cache_bytes"]]
        assert record["read_bytes"] >= limit["read_bytes"]
        assert record["read_bytes_decode"] >= limit["read_bytes_decode"]


def test_what_is_replayed_is_said():
    kept, dropped = (
        replay(IN_TURNS, ["lru", "bound"], cache_mib=1, bypass=choice, per_layer=True)
        for choice in (False, True)
    )
    assert (kept.config["bypass"], dropped.config["bypass"]) == (False, True)
    assert [r["bypass"] for r in dropped.records] == [True, True]
    assert dropped.frame["bypass"].all()
    text = " ".join(dropped.to_text().split())
    assert "bypass: the engine may drop at once what it has just used; the scratch buffer" in text
    assert "reads only what is asked for, even if it drops at once what it has just used" in text
    assert "the largest load that it may have to hold is 1 MiB while decoding." in text
    assert "no bound of a layer: most layers alone would fit the cache" in text
    text = " ".join(kept.to_text().split())
    assert "bypass" not in text
    assert "reads only what is asked for, and keeps what it reads until the load ends" in text
    prompt = Run({0: MIB}, 3, 1, ((0, False, 0, {0: [(0,), (1,)]}), (0, True, 2, {0: [(2,)]})))
    (note, *_) = replay(prompt.trace(), "lru", cache_mib=1, bypass=True).notes
    assert note.endswith("is 1 MiB while decoding and 2 MiB in prompts.")


def test_a_policy_of_ones_own_sees_what_the_batch_touched():
    trace = Run(
        {0: 1}, 4, 2, tuple((0, True, t, {0: [pair]}) for t, pair in enumerate([(0, 1), (2, 0)]))
    ).trace()
    for bypass, expected in ((False, [((2, 0), (1,))]), (True, [((2, 0), (1, 2, 0))])):
        Watches.seen = []
        replay(trace, Watches(), cache_bytes=2, bypass=bypass)
        assert Watches.seen == expected


def test_a_policy_without_a_meaning_is_left_out_or_refused():
    sentence = "keeps-its-loads does not say what it does where an engine may drop at once"
    result = replay(IN_TURNS, ["lru", KeepsItsLoads()], cache_mib=1, bypass=True)
    assert result.config["policies"] == ["lru"]
    assert any(n.startswith(f"Left out: keeps-its-loads, because {sentence}") for n in result.notes)
    for refused in (
        lambda: replay(IN_TURNS, KeepsItsLoads(), cache_mib=1, bypass=True),
        lambda: analysis.residency_timeline(IN_TURNS, KeepsItsLoads(), MIB, bypass=True),
        lambda: analysis.hit_rate_gains(IN_TURNS, [KeepsItsLoads()], 0.5, bypass=True),
    ):
        with pytest.raises(UsageError, match=sentence):
            refused()
    assert replay(IN_TURNS, KeepsItsLoads(), cache_mib=1).records[0]["policy"] == "keeps-its-loads"


def test_a_policy_that_holds_more_than_its_budget_is_not_compared():
    (record,) = replay(IN_TURNS, OverItsBudget(), cache_mib=1, bypass=True).records
    assert record["over_budget"]
    assert record["gap_to_bound"] is None


@pytest.fixture(scope="module")
def small():
    return synthesize(3, 12, 2, 30, prefill=6)


def test_analyses_replay_the_same_admission(small):
    budget = small.token_cycle_bytes // 2
    (drops,) = replay(small, "lfu", cache_bytes=budget, bypass=True).records
    (keeps,) = replay(small, "lfu", cache_bytes=budget).records
    assert drops["hits_decode"] != keeps["hits_decode"]
    timeline = analysis.residency_timeline(small, "lfu", budget, bypass=True)
    assert timeline["hits"].sum() == drops["hits_decode"]
    reads = analysis.read_bytes_by_token(small, ["lfu"], budget, bypass=True)
    assert reads["read_bytes"].sum() == drops["read_bytes_decode"]
    (gain,) = analysis.hit_rate_gains(
        small, ["lfu"], cache_bytes=[budget], bypass=True
    ).itertuples()
    assert gain.hit_rate_decode == drops["hit_rate_decode"]
    curve = analysis.hit_rate_curves(small, ["lfu"], [budget], bypass=True)
    assert curve["hits_decode"].item() == drops["hits_decode"]
    for frame in (timeline, reads, curve):
        assert frame["bypass"].all()


@pytest.mark.parametrize("bypass", [False, True])
def test_a_report_replays_the_same_admission(small, bypass):
    budget = small.token_cycle_bytes // 2
    page = build_report(
        small,
        policies=["lru", "lfu", "bound"],
        predictors=["prev-token"],
        cache_bytes=[budget],
        pictures={},
        bypass=bypass,
    )
    kept = "to the budget" if bypass else "what it reads until the load ends"
    assert f"No policy that reads only on demand, and keeps {kept}, exceeds" in page
    assert ("Its scratch buffer is not charged to the cache" in page) == bypass
    (record,) = replay(small, "lfu", cache_bytes=budget, bypass=bypass).records
    assert f"{100 * record['hit_rate_decode']:.1f}" in page


@pytest.mark.slow
def test_the_command_line_takes_it(small, tmp_path):
    write_trace(small, tmp_path / "small.trace")
    path = str(tmp_path / "small.trace")
    words = ("replay", path, "--bypass", "--policy", "lfu", "--cache-mib", "1", "--format")
    (result,) = json.loads(run(*words, "json").out)["results"]
    assert result["bypass"] is True
    assert result == replay(small, "lfu", cache_mib=1, bypass=True).records[0]
    header, row = run(*words, "csv").out.splitlines()
    assert dict(zip(header.split(","), row.split(","), strict=True))["bypass"] == "true"
    picture = tmp_path / "timeline.csv"
    assert run("plot", "timeline", path, "--bypass", "-o", str(picture)).code == 0
    assert set(np.genfromtxt(picture, str, delimiter=",", skip_header=1)[:, 3]) == {"true"}
    refused = run("plot", "overlap", path, "--bypass", "-o", str(tmp_path / "o.png"))
    assert refused.code == 2
    assert "plot overlap takes no --bypass; leave it out." in refused.err
    page = tmp_path / "page.html"
    assert run("report", path, "--bypass", "-o", str(page), "--policy", "lru,bound").code == 0
    assert "keeps to the budget, exceeds" in page.read_text(encoding="utf-8")


STUDY = """
title = "A study"
[traces.small]
file = "small.trace"
[[run]]
policies = ["lfu"]
cache_cycles = [0.5]
[[run]]
policies = ["lfu"]
cache_cycles = [0.5]
bypass = true
[[claim]]
says = "admission matters"
figure = "hits_decode"
of = { bypass = true }
minus = { bypass = false }
above = 0
"""


def test_a_study_compares_the_two(small, tmp_path):
    write_trace(small, tmp_path / "small.trace")
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    result = sweep(path)
    assert list(result.frame["bypass"]) == [False, True]
    budget = round(small.token_cycle_bytes / 2)
    keeps, drops = (
        replay(small, "lfu", cache_bytes=budget, bypass=b).records[0]["hits_decode"]
        for b in (False, True)
    )
    assert result.verdicts[0].figures.tolist() == [drops - keeps]
    run_of_predictors = '[[run]]\npredictors = ["prev-token"]\nbypass = true\n'
    path.write_text(STUDY.split("[[run]]")[0] + run_of_predictors)
    with pytest.raises(UsageError, match=r"\[\[run\]\] 1 scores predictors, and bypass is for pol"):
        sweep(path)
