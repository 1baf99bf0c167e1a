"""Totals at many budgets in one pass are those of a run at each budget."""

from dataclasses import replace

import numpy as np
import pytest
from cache_runs import EXAMPLES, cases
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.policies import Bound, depths, load_policy
from tracekit.policies.distances import go_on
from tracekit.replaying import build_batches, replay
from tracekit.replaying.prepare import _has_totals as has_totals
from tracekit.trace import synthesize


def by_kind_and_layer(batches, cells):
    found = np.zeros((len(cells), 3, batches.n_layers), np.int64)
    for c, cell in enumerate(cells):
        np.add.at(found[c], (batches.kind, batches.layer), cell.hits)
    return found


def decode_peak(batches, cell):
    which = batches.counted_decode & batches.after_first_decode
    return int(cell.resident_bytes[which].max()) if which.any() else None


def check(batches, totals, cells):
    for total, cell in zip(totals, cells, strict=True):
        of_layer = by_kind_and_layer(batches, [cell])[0]
        assert total.budget_bytes == cell.budget_bytes
        assert total.hits.tolist() == of_layer[1:].sum(axis=0).tolist()
        assert total.hits_decode.tolist() == of_layer[2].tolist()
        assert total.peak_bytes == cell.resident_bytes[batches.counted].max(initial=0)
        assert total.peak_bytes_decode == decode_peak(batches, cell)


def marked(batches, warming, skipped):
    """Leave out of the figures the first batches `warming`, and of decode the next `skipped`."""
    number = np.arange(len(batches))
    return replace(
        batches,
        warming=number < warming,
        skipped=(number >= warming) & (number < warming + skipped),
    )


def each_thrice(batches):
    """Repeat each batch at once, as the next two of its layer."""
    order = np.repeat(np.arange(len(batches)), 3)
    of_batch = [slice(*batches.batch_start[b : b + 2]) for b in order]
    per_batch = ("layer", "turn", "pass_id", "step", "phase")
    return replace(
        batches,
        keys=np.concatenate([batches.keys[keys] for keys in of_batch]),
        admit_rank=np.concatenate([batches.admit_rank[keys] for keys in of_batch]),
        batch_start=np.append(0, np.cumsum(batches.lookups[order])),
        **{name: getattr(batches, name)[order] for name in per_batch},
    )


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(), warming=st.integers(0, 6), skipped=st.integers(0, 6))
def test_lru_at_all_budgets_is_what_it_is_at_each(case, warming, skipped):
    batches = marked(case.batches, warming, skipped)
    budgets = np.array([*case.budgets, *case.budgets[::-1]])
    lru = load_policy("lru")
    check(batches, lru.totals(batches, budgets), lru.simulate(batches, budgets))


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("expert_bytes", [7, [7, 11, 7]])
def test_lru_at_all_budgets_is_what_it_is_at_each_of_a_long_run(expert_bytes, bypass):
    trace = synthesize(3, 20, 3, 300, 2, prefill=9, expert_bytes=expert_bytes)
    batches = build_batches(trace, bypass=bypass)
    budgets = np.arange(0, batches.bank_bytes + 20, 9)
    lru = load_policy("lru")
    check(batches, lru.totals(batches, budgets), lru.simulate(batches, budgets))


@pytest.mark.parametrize("bypass", [False, True])
def test_lru_counts_over_several_sections_of_touches(bypass):
    trace = synthesize(2, 2000, 8, 1500, 2, prefill=9, expert_bytes=7)
    batches = build_batches(trace, bypass=bypass)
    numbered = 4 * batches.n_keys  # then the touches are numbered anew
    assert len(batches.keys) > numbered
    assert len(np.unique(batches.keys[:numbered])) > 1024  # touches of a section
    budgets = np.linspace(0, batches.bank_bytes, 40).astype(np.int64)
    lru = load_policy("lru")
    check(batches, lru.totals(batches, budgets), lru.simulate(batches, budgets))


@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize(("n_experts", "k"), [(60, 4), (400, 8)])
@pytest.mark.parametrize("expert_bytes", [[7, 11, 7], [2, 2, 3]])
def test_lru_goes_on_by_distances_once_most_peaks_are_known(
    expert_bytes, n_experts, k, bypass, monkeypatch
):
    trace = synthesize(3, n_experts, k, 800, 4, prefill=9, expert_bytes=expert_bytes)
    batches = marked(each_thrice(build_batches(trace, bypass=bypass)), 30, 50)
    budgets = np.linspace(0, 1.02 * batches.bank_bytes, 60).astype(np.int64)
    went_on = []

    def spy(batches, budgets, touched, *found):
        went_on.append(touched.batch)
        go_on(batches, budgets, touched, *found)

    monkeypatch.setattr(depths, "go_on", spy)
    lru = load_policy("lru")
    check(batches, lru.totals(batches, budgets), lru.simulate(batches, budgets))
    assert len(went_on) == 1
    assert 0 < went_on[0] < 0.9 * len(batches)

    hits, peaks = depths.hits_and_peaks_at(batches, budgets)
    monkeypatch.setattr(depths, "_FEW", len(budgets))
    by_depths, its_peaks = depths.hits_and_peaks_at(batches, budgets)
    assert len(went_on) == 2
    assert hits.tolist() == by_depths.tolist()
    assert peaks.tolist() == its_peaks.tolist()


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=cases(equal_sizes=True))
def test_hits_of_belady_and_limits_at_all_budgets_are_those_at_each(case):
    budgets = np.array(case.budgets)
    belady, bound = load_policy("belady"), Bound()
    cells = belady.simulate(case.batches, budgets)
    check(case.batches, belady.totals(case.batches, budgets), cells)
    assert bound.totals(case.batches, budgets) == bound.simulate(case.batches, budgets)


@pytest.mark.parametrize("options", [{}, {"bypass": True}, {"skip": 2}, {"warm": True}])
def test_rows_of_a_replay_are_the_same_from_totals_and_from_runs(options, monkeypatch):
    trace, other = (
        synthesize(3, 12, 2, 60, 2, prefill=9, seed=seed, expert_bytes=5) for seed in (0, 1)
    )
    given = options | ({"warm": other} if "warm" in options else {})
    budgets = [0, 3, *range(5, 200, 13)]
    asked = []

    def found():
        result = replay(
            trace, ["lru", "belady", "bound"], cache_bytes=budgets, per_layer=True, **given
        )
        return [repr(row) for row in result.rows]

    def in_totals(run, n):
        asked.append(run.policy.name)
        return has_totals(run, n)

    monkeypatch.setattr("tracekit.replaying.prepare._has_totals", in_totals)
    totals = found()
    assert sorted(asked) == ["belady", "bound", "lru"]
    monkeypatch.setattr("tracekit.replaying.prepare._has_totals", lambda run, n: False)
    assert found() == totals
