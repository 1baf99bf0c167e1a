"""Passes that verify several drafted tokens: what is said of time, bytes and tokens."""

import json
from dataclasses import replace

import pytest
from cli_helpers import run
from recorded_runs import counts_of, drafted, plain, rejecting, with_residency

from tracekit import analysis
from tracekit.plots import plot_read_bytes, plot_timeline
from tracekit.replaying import replay
from tracekit.report import overview
from tracekit.trace import Trace, describe, write_trace

MIB = 1 << 20
BUDGET = 30 * MIB


@pytest.fixture(scope="module")
def trace() -> Trace:
    """80 decoded tokens, four in a pass; every fifth of them was rejected, and each pass took 8 ms."""
    trace = drafted()
    timed = with_residency(trace, None, BUDGET, counts=counts_of(trace, BUDGET))
    return rejecting(timed)


def test_rejected_tokens_are_no_generated_ones(trace):
    facts = describe(trace)
    assert (facts["passes"], facts["passes_decode"]) == (22, 20)
    assert (facts["tokens_decode"], facts["tokens_rejected"]) == (64, 16)
    assert trace.n_decoded == 64


def test_what_was_read_for_rejected_tokens_counts(trace):
    """The cache sees all four tokens of a pass, whichever stay."""
    kept = Trace.from_tables(
        trace.facts, *(trace.table(f"{file}.parquet") for file in ("layers", "routing"))
    )
    assert kept.n_decoded == 80
    rows = [replay(each, "lru", cache_bytes=BUDGET).rows[0] for each in (trace, kept)]
    assert rows[0].read_bytes_decode == rows[1].read_bytes_decode > 0


def test_info_gives_time_and_bytes_per_pass_and_per_kept_token(trace, tmp_path):
    path = tmp_path / "run.trace"
    write_trace(trace, path)
    out = run("info", path).out
    read = replay(trace, "lru", cache_bytes=BUDGET).rows[0].read_bytes_decode
    assert "80 decode" not in out
    assert (
        "64 decode; 2 turns, 22 passes; 4.00 tokens per decode pass, 16 drafted tokens rejected"
        in out
    )
    per_pass, per_token = (f"{read / count / MIB:.2f}" for count in (20, 64))
    assert (
        f"decoding  8 ms and {per_pass} MiB read per pass, 2.5 ms and {per_token} MiB read per kept "
        "token, on average\n"
    ) in out
    facts = json.loads(run("info", path, "--format", "json").out)
    assert facts["wall_ms_per_pass_decode"] == 8
    assert facts["wall_ms_per_token_decode"] == 2.5
    assert facts["read_bytes_per_pass_decode"] == read / 20
    assert facts["read_bytes_per_token_decode"] == read / 64


def test_info_of_one_token_a_pass(tmp_path):
    path = tmp_path / "run.trace"
    alone = plain()
    write_trace(with_residency(alone, None, BUDGET, counts=counts_of(alone, BUDGET)), path)
    read = replay(alone, "lru", cache_bytes=BUDGET).rows[0].read_bytes_decode
    out = run("info", path).out
    assert f"decoding  {read / 80 / MIB:.2f} MiB read per token, on average\n" in out
    assert "rejected" not in out


def test_a_rejected_token_alone_in_its_pass_is_told(tmp_path):
    path = tmp_path / "run.trace"
    write_trace(rejecting(plain()), path)
    assert "1.00 tokens per decode pass, 16 drafted tokens rejected" in run("info", path).out


def test_a_replay_gives_bytes_per_pass_and_per_kept_token(trace):
    result = replay(trace, ["lru", "bound"], cache_bytes=BUDGET, flash_mib_s=100)
    row, bound = result.rows
    text = result.to_text()
    assert "64 decoded tokens in 20 decode passes" in text
    assert "per token: of those that stayed; a pass verifies several" in text
    (line,) = [line for line in text.splitlines() if line.startswith("lru")]
    read = row.read_bytes_decode / MIB
    assert f"{read / 64:.2f}" in line
    assert f"{read / 20:.2f}" in line
    assert f"{1000 * read / 64 / 100:.3g}" in line
    assert f"{1000 * read / 20 / 100:.3g}" in line
    (line,) = [line for line in text.splitlines() if line.startswith("bound")]
    assert f"≥ {bound.read_bytes_decode / MIB / 20:.2f}" in line
    document = result.to_json()
    assert document["config"]["tokens_decode"] == 64
    assert document["config"]["passes_decode"] == 20
    record = document["results"][0]
    assert record["flash_ms_per_pass_decode"] * 20 == pytest.approx(
        record["flash_ms_per_token_decode"] * 64
    )


def test_a_replay_of_one_token_a_pass_has_no_columns_for_passes():
    text = replay(plain(), "lru", cache_bytes=BUDGET, flash_mib_s=100).to_text()
    assert "pass" not in text


def test_a_picture_of_bytes_is_of_passes(trace):
    frame = analysis.read_bytes_by_token(trace, ["lru"], BUDGET)
    assert len(frame) == 20
    assert frame["kept_tokens"].sum() == 64
    ax = plot_read_bytes(frame)
    assert ax.get_xlabel() == "decode pass"
    assert "per decode pass" in ax.get_title(loc="left") + ax.get_title()
    per_token = frame["read_bytes"].sum() / 64 / MIB
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert any(label.endswith(f": {per_token:.3g} MiB per kept token") for label in labels)
    assert (
        plot_timeline(analysis.residency_timeline(trace, "lru", BUDGET)).get_xlabel()
        == "decode pass"
    )


def test_gains_are_of_the_lookups_of_passes():
    trace = drafted(1200)
    frame = analysis.hit_rate_gains(trace, ["ring", "lfu"], cache_bytes=BUDGET)
    rows = replay(trace, ["ring", "lfu"], cache_bytes=BUDGET).rows
    assert frame["hit_rate_decode"].tolist() == [row.hit_rate_decode for row in rows]
    assert (frame["ci95_low"] <= frame["gain"]).all()


def test_a_picture_of_one_token_a_pass_is_of_tokens():
    frame = analysis.read_bytes_by_token(plain(), ["lru"], BUDGET)
    assert (frame["kept_tokens"] == 1).all()
    assert plot_read_bytes(frame).get_xlabel() == "decoded token"


def test_the_report_gives_both(trace):
    assert "64 decoded tokens, 20 decode passes" in overview.lead(trace)
    facts = dict(overview.facts(trace))
    assert facts["A decode pass"] == "8 ms (medians)"
    assert facts["A kept token"] == "2.5 ms on average"
    alone = dict(overview.facts(rejecting_nothing()))
    assert alone["A decoded token"] == "8 ms (medians)"


def rejecting_nothing() -> Trace:
    trace = rejecting(plain())
    steps = trace.table("steps.parquet").drop(["kept"])
    tables = (trace.table(f"{file}.parquet") for file in ("layers", "routing"))
    return Trace.from_tables(replace(trace.facts), *tables, steps)


def test_the_table_of_the_report_gives_both(trace):
    from tracekit.report.caching import replay_table

    cache = replay_table(trace, ["lru"], [BUDGET], 0, 1)
    ((row,),) = [budget.rows for budget in cache.budgets]
    read = replay(trace, "lru", cache_bytes=BUDGET).rows[0].read_bytes_decode / MIB
    assert row.read.replace("\N{NO-BREAK SPACE}", " ") == (
        f"{read / 64:.3g} MiB ({read / 20:.3g} MiB a pass)"
    )
