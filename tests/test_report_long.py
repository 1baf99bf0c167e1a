"""The report of a long trace: an excerpt where all of it would take minutes, and the page says so."""

import numpy as np
import pytest
from report_pages import report
from report_traces import open_written

from tracekit.policies import LRU
from tracekit.replaying import replay
from tracekit.report import long
from tracekit.report.caching import replay_table
from tracekit.report.long import studied
from tracekit.report.times import frames
from tracekit.routing.excerpt import excerpt
from tracekit.routing.grid import decode_grid
from tracekit.scoring import predict
from tracekit.trace import UsageError, synthesize
from tracekit.trace.schema import DECODE


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    return open_written(folder / "run.trace", n_tokens=60, n_turns=12)


@pytest.fixture
def as_long(monkeypatch):
    """Let every trace count as long."""
    monkeypatch.setattr(long, "LONG_LOOKUPS", 0)
    monkeypatch.setattr(long, "EXCERPT_LOOKUPS", 32 * 8)  # 32 tokens of 4 layers × 2
    monkeypatch.setattr(long, "MOST_REPLAYED", 0)
    monkeypatch.setattr(long, "MOST_OF_QUICK", 0)


def test_an_excerpt_has_the_beginnings_of_turns_that_are_drawn_evenly(trace):
    found = excerpt(trace, 20)
    assert found.n_turns == 10
    assert found.trace.n_turns == 10
    whole, part = (
        trace.routing(["turn", "step", "experts"]),
        found.trace.routing(["turn", "experts"]),
    )
    drawn = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10]
    taken = np.isin(whole["turn"], drawn) & (whole["step"] < 5 + found.most_tokens)
    assert found.most_tokens == 2
    assert (part["experts"] == whole["experts"][taken]).all()
    assert (part["turn"] == np.searchsorted(drawn, whole["turn"][taken])).all()
    assert found.trace.n_decoded == 10 * 2
    assert found.trace.warnings == trace.warnings
    assert found.trace.n_steps == 10 * (5 + 2)


def test_short_turns_are_taken_in_larger_number(trace):
    per_turn = trace.n_decoded // trace.n_turns
    found = excerpt(trace, 11 * per_turn)
    assert found.n_turns == 11
    assert found.trace.n_decoded == 11 * per_turn


def test_an_excerpt_of_a_trace_in_memory_is_replayed_as_a_trace_of_these_rows():
    trace = synthesize(3, 8, 2, 40, n_turns=1, prefill=4)
    found = excerpt(trace, 12).trace
    steps = trace.routing(["phase", "step"])
    last = int(steps["step"][steps["phase"] == DECODE].min()) + found.n_decoded
    assert (decode_grid(found).experts == decode_grid(trace).experts[: found.n_decoded]).all()
    assert decode_grid(found).step[-1] == last - 1


def test_what_is_not_long_is_studied_whole(trace):
    assert studied(trace).trace is trace
    assert studied(trace).notes == studied(trace).warnings == []


@pytest.mark.usefixtures("as_long", "fewer_ranked")
def test_the_page_says_what_is_of_an_excerpt(trace, monkeypatch):
    monkeypatch.setattr("tracekit.report.matrix.MOST_LOOKUPS", 7 * 8)
    page = report(trace, advice=True)
    part = studied(trace)
    assert part.trace.n_decoded < trace.n_decoded
    assert page.says(part.warnings[0])
    assert page.says(f"These figures are of an excerpt: {part.excerpt_of}.")
    assert page.says("This advice is of an excerpt")
    assert not page.says("Commands that show these figures")
    routings = {row.predictor: row.routings for row in predict(part.trace).rows}
    assert page.says(f"{routings['recall']:,}")
    assert page.says(f"the matrix shows the first 7 of {trace.n_decoded} decoded tokens")
    assert page.config()["tokens"] == 7


@pytest.mark.usefixtures("as_long")
def test_rows_of_a_long_trace_are_those_of_a_replay(trace):
    names = ["lru", "lfu", "belady", "bound"]
    cache = replay_table(trace, names, None, 0, 1)
    assert {row.budget for row in cache.rows if row.policy == "lfu"} == {cache.main}
    for row in cache.rows:
        (alone,) = replay(trace, row.policy, cache_bytes=[row.budget]).rows
        assert row.hit_rate_decode == alone.hit_rate_decode
        assert row.gap_to_bound == alone.gap_to_bound
    assert any("lfu was replayed at" in note for note in cache.notes)
    assert [row.policy for row in cache.rows if row.budget == cache.main] == names
    curves = frames(trace, cache, None, ["curves"], 0, 1)["curves"]
    assert set(curves["policy"]) == {"bound", *names}
    of_lfu = curves[curves["policy"] == "lfu"]
    assert of_lfu["cache_bytes"].tolist() == [cache.main]
    assert len(curves[curves["policy"] == "lru"]) > 10
    assert curves["ceiling_decode"].nunique() == 1


def test_budgets_that_are_none_are_refused_in_a_sentence(trace):
    for given, sentence in (([], "no cache budget"), ([1000, "x"], "bytes, not 'x'")):
        with pytest.raises(UsageError, match=sentence):
            replay_table(trace, ["lru"], given, 0, 1)


def test_a_class_derived_from_a_quick_policy_is_not_taken_for_one(trace, as_long):
    class Own(LRU):
        """It may take as long as it likes."""

    main = trace.bank_bytes // 4
    asked = long.budgets_of_long(trace, [1000, main], main, has_times=False)
    assert len(asked(LRU())) > 2
    assert asked(Own()) == [main]
