"""The figures published for the phone traces, to the printed digit, and what the engine measured."""

import csv

import numpy as np
import pytest
from families import slow_unless

import tracekit

TRACES = {"qwen": 4000, "gptoss": 3000}  # the budget each was recorded with, MiB
OUR_NAME = {"layer": "layer-lru", "layerlfu": "layer-lfu"}
BUDGETS = [250, 500, 750, 1000, 1500, 2000, 2500, 3000, 4000, 6000, 8000]
MIB = 2**20


@pytest.fixture(scope="module", params=slow_unless(TRACES, "gptoss"))
def model(request):
    return request.param


@pytest.fixture(scope="module")
def trace(phone_traces, model):
    return tracekit.open_trace(phone_traces / "traces" / f"{model}.route.csv")


@pytest.fixture(scope="module")
def published(phone_traces, model):
    with (phone_traces / "published" / f"{model}-curve.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def replayed(trace):
    policies = ["belady", "lru", "lfu", "random", "layer-lru", "layer-lfu", "bound"]
    result = tracekit.replay(trace, policies, cache_mib=BUDGETS)
    return {(r["policy"], r["cache_mib"]): r for r in result.records}


def test_every_published_cell_to_the_printed_digit(published, replayed):
    compared = 0
    for row in published:
        name = OUR_NAME.get(row["policy"], row["policy"])
        if name == "random":
            continue
        ours = replayed[name, float(row["budget_mib"])]
        printed = (
            f"{100 * ours['hit_rate_cumulative']:.3f}",
            f"{100 * ours['hit_rate_decode']:.3f}",
            f"{ours['read_bytes'] / MIB:.1f}",
        )
        assert printed == (row["hit_pct_cum"], row["hit_pct_decode"], row["read_mib"]), row
        compared += 1
    assert compared == 5 * len(BUDGETS)


def test_random_is_near_the_published_one(published, replayed):
    for row in published:
        if row["policy"] == "random":
            ours = replayed["random", float(row["budget_mib"])]
            assert abs(100 * ours["hit_rate_cumulative"] - float(row["hit_pct_cum"])) < 1.5
            assert abs(100 * ours["hit_rate_decode"] - float(row["hit_pct_decode"])) < 1.5


def test_lru_reproduces_the_recorded_residency_of_every_decode_lookup(trace, model):
    (record,) = tracekit.replay(trace, "lru", cache_mib=TRACES[model], validate=True).records
    lookups = {"qwen": 36_864, "gptoss": 4_608}[model]
    assert record["validation"] == {"lookups": lookups, "mismatches": 0}
    printed = {"qwen": "74.88", "gptoss": "32.41"}[model]
    assert f"{100 * record['hit_rate_cumulative']:.2f}" == printed


def test_another_budget_does_not_reproduce_the_residency(trace, model):
    (record,) = tracekit.replay(trace, "lru", cache_mib=TRACES[model] - 100, validate=True).records
    assert record["validation"]["mismatches"] > 0


def test_the_bound_is_over_every_policy_that_kept_to_its_budget(replayed):
    for (policy, mib), record in replayed.items():
        if policy != "bound" and not record["over_budget"]:
            bound = replayed["bound", mib]
            assert record["hits"] <= bound["hits"]
            assert record["read_bytes"] >= bound["read_bytes"]
            assert record["gap_to_bound"] >= 0


def test_the_bound_is_near_what_belady_reads(replayed):
    for mib in BUDGETS:
        ratio = replayed["belady", mib]["read_bytes"] / replayed["bound", mib]["read_bytes"]
        assert 1 <= ratio < 1.002


def test_layer_shares_overrun_a_budget_that_is_smaller_than_their_routing(replayed, model):
    if model == "qwen":
        record = replayed["layer-lru", 250]
        assert round(record["peak_resident_bytes_decode"] / MIB) == 785
        assert record["over_budget_decode"]
        assert record["hits"] > replayed["belady", 250]["hits"]
        assert record["bound_class"] == "layer-shares"


def test_global_lru_never_hits_a_routing_or_more_under_the_token_cycle(trace):
    sizes = trace.expert_bytes
    cycle = int(sizes.sum()) * trace.top_k
    budgets = np.linspace(0, cycle - trace.top_k * int(sizes.max()), 20).astype(int).tolist()
    result = tracekit.replay(trace, "lru", cache_bytes=budgets)
    assert [r["hits_decode"] for r in result.records] == [0] * 20
    assert all(r["under_token_cycle"] for r in result.records)
