"""Figures of bounds and of recall on real traces, found by programs that share no code with this one."""

import pytest

import tracekit

# Decode hit rates in percent that no demand policy exceeds, at cache sizes in MiB.
BOUNDS = {1.0: 49.94, 2.4: 73.71, 4.8: 90.60}
# Slot accuracy in percent, by horizon.
RECALL = {
    "qwen.route.csv": {1: 63.6, 4: 61.5, 12: 60.0, "token": 44.4},
    "gptoss.route.csv": {1: 45.8, 4: 42.5, 12: 37.7, "token": 26.4},
}
RECALL_GATE = {1: 78.0, 2: 71.0, 3: 65.5, 4: 61.5}  # at least


def opened(phone_traces, name):
    return tracekit.open_trace(phone_traces / "traces" / name)


def test_the_bound_of_equal_sizes_is_exact(phone_traces):
    trace = opened(phone_traces, "bundled-2026-11.trace")
    records = tracekit.replay(trace, "bound", cache_mib=list(BOUNDS)).records
    rates = [100 * record["hit_rate_decode"] for record in records]
    assert rates == pytest.approx(list(BOUNDS.values()), abs=0.005)


def test_prices_tighten_the_bound_of_unequal_sizes(phone_traces):
    trace = opened(phone_traces, "qwen.route.csv")
    result = tracekit.replay(
        trace, ["belady", "bound"], cache_mib=1000, params={"bound.prices": [0, 100]}
    )
    belady, plain, priced = (100 * record["hit_rate_decode"] for record in result.records)
    assert belady < priced <= 63.35 < plain


@pytest.mark.parametrize("name", RECALL)
def test_recall_names_what_it_was_found_to(phone_traces, name):
    known = RECALL[name]
    rows = tracekit.predict(opened(phone_traces, name), ["recall"], list(known)).rows
    assert [row.horizon for row in rows] == list(known)
    found = [100 * row.slot_accuracy for row in rows]
    assert found == pytest.approx(list(known.values()), abs=0.5)


@pytest.mark.slow
def test_recall_gate_names_at_least_what_it_was_found_to(phone_traces):
    trace = opened(phone_traces, "bundled-2026-11.trace")
    rows = tracekit.predict(trace, ["recall-gate"], list(RECALL_GATE)).rows
    for row in rows:
        assert 100 * row.slot_accuracy >= RECALL_GATE[row.horizon]
