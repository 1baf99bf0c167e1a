"""A recording that was cut within a token: every question is answered from the tokens before."""

from pathlib import Path

import pytest
import route_trace_files as files

from tracekit import analysis
from tracekit.formats import open_any
from tracekit.replaying import replay
from tracekit.report import build_report
from tracekit.routing.cut import cut_pass, whole_decode_rows
from tracekit.scoring import predict
from tracekit.trace import Trace, TracekitError, write_trace


def rows_of(drafts: bool) -> list[str]:
    """Return a prompt of three tokens and six decoded ones, two by two if there are drafts."""
    rows = [
        row for layer in (1, 2) for step in range(3) for row in files.routing(0, 0, step, layer)
    ]
    together = 2 if drafts else 1
    for first in range(3, 9, together):
        for layer in (1, 2):
            for step in range(first, first + together):
                rows += files.routing(0, 1, step, layer, experts=(step % 8, (step + layer) % 8))
    return rows


@pytest.fixture(params=[pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "drafts"])
def cut(request, tmp_path):
    def cut(left_out: int, name: str = "x.csv") -> Trace:
        rows = rows_of(request.param)
        path = tmp_path / name
        # A line without its end tells that the file was cut.
        path.write_text(files.text(rows[: len(rows) - left_out]) + "0,1" * (left_out > 0))
        return open_any(path)

    cut.routings_of_a_pass = 4 if request.param else 2
    return cut


QUESTIONS = {
    "predict": lambda t: predict(t, ["prev-token", "static-hot", "layer-lag"], jobs=1).frame.drop(
        columns="fit_seconds"
    ),
    "overlap": analysis.overlap_by_lag,
    "reuse": lambda t: analysis.reuse_distance(t, "tokens"),
    "windows": lambda t: (
        analysis.working_set(t).query("span == 'in a window'").reset_index(drop=True)
    ),
    "weights": lambda t: analysis.routing_concentration(t)[
        ["layer", "weight_entropy", "top1_share"]
    ],
    "gains": lambda t: analysis.hit_rate_gains(t, ["lfu"])["gain"],
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_cut_token_changes_no_answer_about_those_before(question, cut):
    n = cut.routings_of_a_pass
    for passes in (0, 1):
        # Slots of a routing are two lines: whole passes first, then one routing more each time.
        whole = cut(2 * n * (passes + 1), "whole.csv")
        expected = QUESTIONS[question](whole)
        for more in range(1, n):
            trace = cut(2 * (n * (passes + 1) - more))
            assert cut_pass(trace) is not None
            assert len(whole_decode_rows(trace)) == len(whole_decode_rows(whole))
            found = QUESTIONS[question](trace)
            assert found.equals(expected), (passes, more)


def test_policies_act_on_what_is_known_of_a_cut_token(cut):
    for left_out in range(1, 2 * cut.routings_of_a_pass):
        params = {f"{name}.predictor": "prev-token" for name in ("retention", "prefetch")}
        result = replay(
            cut(left_out), ["lru", "retention", "prefetch"], cache_mib=[0.001], params=params
        )
        assert len({row.lookups for row in result.rows}) == 1
        assert result.notes[0].startswith(result.trace.warnings[0])


def test_a_report_of_a_cut_recording(cut):
    trace = cut(2)
    page = build_report(trace, policies=["lru"], pictures={})
    assert "is incomplete" in page


def test_a_recording_cut_in_its_first_decoded_token(cut):
    trace = cut(2 * (len(rows_of(False)) // 2 - 7))
    assert trace.n_rows == 7
    with pytest.raises(TracekitError, match="no decoded token"):
        predict(trace, ["prev-token"])
    with pytest.raises(TracekitError, match="no decoded token"):
        analysis.overlap_by_lag(trace)
    assert replay(trace, ["lru"], cache_mib=[1]).rows[0].lookups_decode > 0


def test_a_cut_recording_as_a_trace_answers_the_same(cut, tmp_path: Path):
    trace = cut(2)
    write_trace(trace, tmp_path / "x.trace")
    copy = Trace.open(tmp_path / "x.trace")
    for question in QUESTIONS.values():
        assert question(copy).equals(question(trace))


def test_a_whole_recording_has_no_cut_pass(cut):
    assert cut_pass(cut(0)) is None
    assert cut_pass(cut(2 * cut.routings_of_a_pass)) is None
