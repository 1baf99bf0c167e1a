"""Names and texts that come from a file: none writes to a terminal, turns a text, or runs as a formula."""

import base64
import csv
import io
import json

import pandas as pd
import pytest
from cli_helpers import run, write_csv
from report_pages import Page
from report_traces import edit_facts, edit_pieces, write

import tracekit
from tracekit import plots
from tracekit.cli.output import to_csv
from tracekit.figures import csv_cell, from_csv_cell, printable, visible
from tracekit.plots.kinds import KINDS
from tracekit.policies import LRU
from tracekit.report import build_report
from tracekit.report.pictures import draw
from tracekit.table import Column, Table, as_html
from tracekit.trace import Trace

RAW = ("\0", "\x1b", "\x07", "\x9b", "\x7f", "\u202e", "\u2066", "\u200f", "\ufeff", "\U000e0041")
NAME = "evil" + "".join(RAW)


class Hostile(LRU):
    """A policy whose name is not for printing."""

    name = f"=$\\frac$ {NAME}\n"
    summary = "as lru"


@pytest.fixture
def trace(tmp_path) -> Trace:
    path = write(tmp_path / "run.trace", gate_inputs=True)

    def change(facts):
        facts["model"].update(name=NAME, quantisation=NAME)
        facts.update(prompts=[NAME], command=[NAME], ended=NAME)

    edit_facts(path, change)
    edit_pieces(path, [NAME.encode(), b"\n\t", "a\u200db\u200c".encode()])
    return Trace.open(path)


def raw_in(text: str) -> list[str]:
    return [repr(character) for character in RAW if character in text]


def test_what_is_escaped_and_what_stays():
    assert raw_in(printable(NAME)) == raw_in(visible(NAME)) == []
    assert printable("\x1b[0m\u202e") == visible("\x1b[0m\u202e") == "\\x1b[0m\\u202e"
    words = "naïve 東京\xa0%, \u2009صحرا می\u200cخواهم 👨\u200d👩 co\xadop"
    assert visible(words + "\n\t") == words + "\n\t"
    assert printable("1\xa0%, naïve 東京\n") == "1\xa0%, naïve 東京\\n"


def test_a_policys_own_name_in_the_table(trace):
    result = tracekit.replay(trace, [Hostile(), "lru"], cache_mib=[0, 0.01], per_layer=True)
    text = result.to_text()
    assert raw_in(text) == []
    assert "=$\\frac$ evil\\x00\\x1b" in text
    assert raw_in(result._repr_html_()) == []
    assert result.records[0]["policy"] == Hostile.name  # JSON has escapes of its own
    assert raw_in(json.dumps(result.to_json())) == []


@pytest.mark.slow  # four pictures
def test_a_policys_own_name_in_pictures(trace):
    result = tracekit.replay(trace, [Hostile(), "lru"], cache_mib=[0, 0.01])
    axes = result.plot()
    for form in ("svg", "png", "pdf"):
        axes.figure.savefig(io.BytesIO(), format=form)
    words = [text.get_text() for text in axes.get_legend().get_texts()]
    assert any("=$\\frac$ evil\\x00" in each for each in words)
    assert raw_in("".join(words)) == []
    kind, data = KINDS["curves"], tracekit.analysis.hit_rate_curves(trace, [Hostile(), "lru"], 9999)
    picture = base64.b64decode(draw(kind, trace, plots.kinds.Choices(), data).source.split(",")[1])
    assert picture


def test_no_such_character_stands_in_a_report(trace):
    text = build_report(trace, policies=["lru"], predictors=["prev-token"], pictures={})
    page = Page(text)
    assert raw_in(text) == []
    assert page.says("evil\\x00\\x1b\\x07\\x9b\\x7f\\u202e")
    pieces = json.loads(page.blob("pieces-0"))
    assert raw_in("".join(pieces)) == []
    assert {"\n\t", "a\u200db\u200c"} <= set(pieces)


def test_no_such_character_is_printed(trace):
    for command in ("info", "replay", "predict"):
        done = run(command, trace.path)
        assert done.code == 0
        assert raw_in(done.out + done.err) == []
        assert "evil\\x00" in done.out or command == "predict"


def test_the_title_of_a_study_is_escaped(tmp_path):
    study = tmp_path / "x.toml"
    study.write_text(
        'title = "a\\u001b\\u202e"\n[traces.x]\nfile = "of.csv"\n[[run]]\npolicies = ["lru"]\n'
        'cache_mib = [1]\n[[claim]]\nsays = "b\\u0007"\nfigure = "hits"\nof = {}\nat_least = 0\n'
    )
    write_csv(tmp_path / "of.csv")
    done = run("sweep", study)
    assert raw_in(done.out) == []
    assert "a\\x1b\\u202e" in done.out
    assert "b\\x07" in done.out


def test_a_table_keeps_its_lines(capsys):
    table = Table([Column("a\nb\x1b", str)], ["x\ny"], title="t\x1b\nu")
    assert table.text() == "t\\x1b\nu\n    a\nb\\x1b\n x\\ny"
    assert "t\\x1b<br>u" in as_html([table])


# ---- formulas -----------------------------------------------------------------------------------

FORMULAS = ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1", "\n=1", "'=1", "'", '=cmd|"/c calc"!A0']


@pytest.mark.parametrize("text", [*FORMULAS, "", "lru", "a=1", "1-1", " =1"])
def test_a_cell_comes_back(text):
    cell = csv_cell(text)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert from_csv_cell(cell) == text
    assert (cell == text) == (text not in FORMULAS)


@pytest.mark.parametrize("text", FORMULAS)
def test_a_name_does_not_run_in_a_spreadsheet(text):
    read = list(
        csv.reader(io.StringIO(to_csv([{"policy": text, text: -0.5, "n": -1}]), newline=""))
    )
    assert read == [["policy", f"'{text}", "n"], [f"'{text}", "-0.5", "-1"]]


def test_the_result_of_a_study_does_not_run_in_a_spreadsheet(tmp_path):
    study = tmp_path / "x.toml"
    study.write_text(
        'title = "x"\n[traces."=1+1"]\nfile = "of.csv"\n[[run]]\npolicies = ["lru"]\n'
        'cache_mib = [1]\n[[claim]]\nsays = "it is found"\nfigure = "hits"\n'
        'of = { trace = "=1+1" }\nat_least = 0\n'
    )
    write_csv(tmp_path / "of.csv")
    assert run("sweep", study).code == 0
    assert pd.read_csv(tmp_path / "x.csv")["trace"].tolist() == ["'=1+1"]
    assert run("sweep", study, "--check").code == 0
