"""How much of the way from LRU to Belady a policy closes."""

import numpy as np
import pandas as pd
import pytest
from families import ranking_without

from tracekit import analysis, from_arrays, plots
from tracekit.analysis.closure import demand_policies
from tracekit.policies import PlainPolicy, load_policy
from tracekit.replaying import replay
from tracekit.stats.bootstrap import DRAWS, Bootstrap
from tracekit.trace import UsageError, synthesize

BUDGETS = [0.2, 0.4]


@pytest.fixture(scope="module")
def trace():
    return synthesize(4, 16, 2, 600, n_turns=12, prefill=6)


@pytest.fixture(scope="module")
def ranked(trace, left_out):
    with ranking_without(left_out):
        return analysis.closures(trace, cache_fraction=BUDGETS)


def test_a_closure_is_the_share_of_the_way_from_lru_to_belady(trace, ranked, left_out):
    names = [*(name for name in demand_policies() if name not in left_out), "belady"]
    records = replay(trace, names, cache_fraction=BUDGETS).records
    rates = {(r["policy"], r["cache_bytes"]): r for r in records}
    assert set(ranked["policy"]) == {policy for policy, _ in rates}
    for row in ranked.itertuples():
        rate, lru, belady = (
            rates[policy, row.cache_bytes]["hit_rate_decode"]
            for policy in (row.policy, "lru", "belady")
        )
        assert row.hit_rate_decode == rate
        assert row.closure == pytest.approx((rate - lru) / (belady - lru))
        assert row.read_bytes_decode == rates[row.policy, row.cache_bytes]["read_bytes_decode"]
    for _, rows in ranked.groupby("policy"):
        assert rows["mean_closure"].unique() == pytest.approx([rows["closure"].mean()])


def test_the_best_comes_first_and_lru_and_belady_are_the_ends(ranked):
    means = ranked["mean_closure"].to_numpy()
    assert (np.diff(means) <= 0).all()
    for policy, end in (("lru", 0), ("belady", 1)):
        rows = ranked[ranked["policy"] == policy]
        ends = ["closure", "closure_low", "closure_high", "mean_closure", "mean_closure_low"]
        assert (rows[ends] == end).all(axis=None)


def test_an_interval_is_that_of_drawn_turns():
    """The same draws in plain Python, one after the other."""
    rng = np.random.default_rng(1)
    parts, wholes = rng.integers(-3, 9, (12, 2)), rng.integers(1, 20, (12, 2))
    low, high = Bootstrap(np.arange(12), seed=5).intervals_of_ratios(
        parts, wholes, np.ones(12, bool)
    )
    draws = np.random.default_rng(5)
    found = []
    for _ in range(DRAWS):
        times = draws.multinomial(12, np.full(12, 1 / 12))
        ratios = [
            sum(t * p for t, p in zip(times, parts[:, c], strict=True))
            / sum(t * w for t, w in zip(times, wholes[:, c], strict=True))
            for c in range(2)
        ]
        found.append([*ratios, sum(ratios) / 2])
    assert low == pytest.approx(np.quantile(found, 0.025, axis=0))
    assert high == pytest.approx(np.quantile(found, 0.975, axis=0))


def test_where_belady_gains_nothing_there_is_no_closure(trace):
    rows = analysis.closures(trace, ["follow"], cache_fraction=[1.0])
    assert rows["closure"].isna().all()
    assert rows["mean_closure"].isna().all()
    plots.plot_closure(rows)


def test_what_lacks_something_is_left_out_with_a_sentence():
    alone = synthesize(4, 16, 2, 60)
    for pin in ("pin", load_policy("pin")):  # by its name, and as the command line gives it
        frame = analysis.closures(alone, [pin, "ring"], cache_fraction=0.3)
        assert set(frame["policy"]) == {"ring", "lru", "belady"}
        (note,) = frame.attrs["notes"]
        assert note.startswith("Left out: pin, because ")


def test_a_policy_of_ones_own_is_ranked(trace):
    class FirstIn(PlainPolicy):
        name = "first-in"
        summary = "evicts what stands first"

        def victim(self, evictable):
            return min(evictable)

    frame = analysis.closures(trace, [FirstIn()], cache_fraction=0.3)
    assert set(frame["policy"]) == {"first-in", "lru", "belady"}


def test_a_lossy_policy_has_no_closure(trace):
    with pytest.raises(UsageError, match="drop-cold cannot be compared lookup by lookup"):
        analysis.closures(trace, ["drop-cold"])


def test_a_picture_has_a_cell_for_each_policy_and_budget_and_trace(ranked):
    both = [ranked.assign(trace="one"), ranked[ranked["policy"] != "ring"].assign(trace="two")]
    ax = plots.plot_closure(pd.concat(both, ignore_index=True))
    (image,) = ax.get_images()
    n_policies = ranked["policy"].nunique() - 2  # without LRU and Belady
    assert image.get_array().shape == (n_policies, 2 * (len(BUDGETS) + 1))
    labels = [label.get_text() for label in ax.get_yticklabels()]
    assert labels[0] == ranked["policy"][ranked["policy"] != "belady"].iloc[0]
    assert np.isnan(np.asarray(image.get_array(), float)[labels.index("ring"), -1])


def test_the_ends_of_the_way_alone_are_no_picture(trace):
    with pytest.raises(UsageError, match="name a policy between them"):
        plots.plot_closure(analysis.closures(trace, ["lru", "belady"], cache_fraction=0.3))


def test_what_keeps_more_than_its_budget_has_no_closure():
    found = analysis.closures(
        synthesize(8, 16, 4, 60), ["layer-lru", "ring"], cache_fraction=[0.1, 0.5]
    )
    rows = found.set_index(["policy", found["cache_fraction"].round(1)])
    figures = ["closure", "closure_low", "closure_high"]
    assert rows.loc[("layer-lru", 0.1), figures].isna().all()
    assert rows.loc[("layer-lru", 0.5), figures].notna().all()
    assert rows.loc["layer-lru", ["mean_closure", "mean_closure_low"]].isna().all(axis=None)
    assert rows.loc["ring", [*figures, "mean_closure"]].notna().all(axis=None)
    assert rows.index[-1][0] == "layer-lru"
    plots.plot_closure(found)


def test_without_sizes_budgets_are_shares_of_the_experts():
    rng = np.random.default_rng(0)
    chosen = rng.permuted(np.tile(np.arange(8), (60, 2, 1)), axis=2)[:, :, :2]
    rows = analysis.closures(from_arrays(chosen, n_expert=8), ["ring"], cache_fraction=[0.25, 0.5])
    assert rows[["cache_bytes", "cache_mib", "read_bytes_decode"]].isna().all(axis=None)
    ax = plots.plot_closure(rows)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["25 %", "50 %", "mean"]
    assert "of all experts" in ax.get_xlabel()
