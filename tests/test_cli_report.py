"""``tracekit report``: what it writes, says and refuses."""

import pytest
from cli_helpers import run
from report_traces import edit_facts, write

from tracekit.report.build import PICTURES


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """A trace, and a report of it without its pictures: they take longest."""
    monkeypatch.setattr("tracekit.report.build.PICTURES", dict.fromkeys(PICTURES, ()))
    return write(tmp_path / "run.trace")


def test_report_writes_a_page_and_says_so(trace, tmp_path):
    page = tmp_path / "report.html"
    done = run("report", trace, "-o", page)
    assert (done.code, done.out) == (0, "")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert done.err.startswith(f"Wrote {page}: ")
    assert done.err.endswith("Next: open it in a browser.\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "run.trace"]


def test_options_reach_the_report(trace, tmp_path):
    page = tmp_path / "report.html"
    choice = ["--policy", "random", "--cache-mib", "8,16", "--predictor", "prev-token", "--seed", 7]
    done = run("report", trace, "-o", page, *map(str, choice), "-q")
    assert (done.code, done.err) == (0, "")
    text = page.read_text(encoding="utf-8")
    assert text.count("random (seed=7)") > 2
    assert "<b>8\N{NO-BREAK SPACE}MiB</b>" in text
    assert "<b>16\N{NO-BREAK SPACE}MiB</b>" in text
    assert "static-hot" not in text.partition("accuracy-caption")[2].partition("</table>")[0]


@pytest.mark.slow
def test_report_prints_the_warnings_of_a_trace(trace, tmp_path):
    edit_facts(trace, lambda facts: facts.update(complete=False))
    done = run("report", trace, "-o", tmp_path / "x.html")
    assert done.code == 0
    assert "Warning: " in done.err


def test_an_existing_page_is_overwritten_only_with_force(trace, tmp_path):
    page = tmp_path / "report.html"
    page.write_text("mine")
    done = run("report", trace, "-o", page)
    assert done.code == 2
    assert done.err == f"Error: {page} exists; use --force to overwrite it, or another name.\n"
    assert page.read_text() == "mine"
    assert run("report", trace, "-o", page, "--force").code == 0
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--policy", "lrv"], 2, "No policy is called 'lrv'; did you mean 'lru'?"),
        (["--predictor", "prev"], 2, "No predictor is called 'prev'; did you mean 'prev-token'?"),
        (["--cache-mib", "-5"], 2, "--cache-mib takes sizes in MiB from 0 to 1e12, not '-5'."),
        (["--predictor", "ctrl"], 1, "ctrl needs the column 'gate_input' of routing.parquet"),
    ],
)
def test_a_refused_report_leaves_nothing(trace, tmp_path, options, code, sentence):
    done = run("report", trace, "-o", tmp_path / "x.html", *options)
    assert done.code == code
    assert done.err.startswith(f"Error: {sentence}")
    assert done.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.trace"]


def test_an_unwritable_place_is_refused(trace, tmp_path):
    done = run("report", trace, "-o", trace)
    assert (done.code, done.err) == (2, f"Error: {trace} is a folder; name a file to write.\n")
    done = run("report", trace, "-o", tmp_path / "gone" / "x.html")
    assert done.code == 2
    assert done.err == (
        f"Error: Cannot write {tmp_path / 'gone' / 'x.html'}: there is no folder "
        f"{tmp_path / 'gone'}; make it first.\n"
    )
    assert run("report", tmp_path / "none.trace", "-o", tmp_path / "x.html").code == 3
