"""Results in a notebook: as HTML that says what the text says, and as the plot that fits."""

import subprocess
import sys
from html.parser import HTMLParser

import pytest
from report_traces import HOSTILE_NAME, open_written

from tracekit import analysis, plots
from tracekit.replaying import replay
from tracekit.scoring import predict
from tracekit.studies import sweep
from tracekit.table import Column, Table, as_html, as_text


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp("display") / "<script>alert(1)<" / "run.trace"
    path.parent.mkdir()
    return open_written(path, hostile=True, gate_inputs=True)


STUDY = """
title = "A <b>small</b> study"

[traces.small]
file = "bundled:tiny-moe-64e.trace"

[[run]]
policies = ["lru"]
cache_mib = [2.4]

[[claim]]
says = "LRU hits <something>"
figure = "hit_rate_decode"
of = {policy = "lru"}
above = 0.4

[[claim]]
says = "LRU hits everything"
figure = "hit_rate_decode"
of = {policy = "lru"}
at_least = 1
"""


class Words(HTMLParser):
    """The words of a page, and its tags."""

    def __init__(self, page):
        super().__init__()
        self.words, self.tags = [], set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        assert not attrs  # plain HTML, without styles
        self.tags.add(tag)

    def handle_data(self, data):
        self.words += data.split()


RESULTS = {
    "replay": lambda trace: replay(
        trace,
        ["lru", "layer-lru", "drop-cold", "prefetch", "belady", "bound"],
        cache_bytes=[20 << 20, 60 << 20],
        per_layer=True,
    ),
    "predict": lambda trace: predict(trace, ["stale-gate", "prev-token", "ctrl"], named=[3]),
}


@pytest.mark.parametrize("make", RESULTS.values(), ids=RESULTS.keys())
def test_the_html_of_a_result_says_what_its_text_says(trace, make):
    result = make(trace)
    shown = Words(result._repr_html_())
    assert sorted(shown.words) == sorted(result.to_text().split())
    assert {"table", "tr", "td", "p"} <= shown.tags


@pytest.mark.parametrize("make", [lambda trace: trace, RESULTS["replay"]])
def test_names_of_a_trace_stay_text(trace, make):
    page = make(trace)._repr_html_()
    shown = Words(page)
    assert "<script>alert(1)<" in " ".join(shown.words)
    assert HOSTILE_NAME in " ".join(shown.words)
    assert shown.tags <= {"table", "caption", "thead", "tbody", "tr", "th", "td", "p", "br"}


def test_the_html_of_a_trace_says_what_it_holds(tmp_path):
    trace = open_written(tmp_path / "x.trace")
    text = " ".join(Words(trace._repr_html_()).words)
    assert "16 in each of 4 MoE layers, 2 used per token" in text
    assert "40, of 2 turns" in text
    assert "carries experts, weights" in text


def test_a_replay_draws_its_curves(trace):
    result = replay(trace, ["lru", "bound"], cache_bytes=[20 << 20, 60 << 20])
    ours = result.plot()
    theirs = plots.plot_curves(
        analysis.hit_rate_curves(trace, ["lru", "bound"], [20 << 20, 60 << 20])
    )
    assert [line.get_label() for line in ours.lines] == [line.get_label() for line in theirs.lines]
    assert [*ours.lines[0].get_ydata()] == [*theirs.lines[0].get_ydata()]
    assert result.plot(ax=ours) is ours


def test_scored_predictors_draw_their_layers(trace):
    result = predict(trace, ["prev-token", "stale-gate"], horizons=[1, 2])
    labels = [line.get_label() for line in result.plot().lines]
    assert labels == ["prev-token", "stale-gate", "stale-gate at horizon 2"]


def test_a_study_shows_its_claims(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(STUDY)
    page = sweep(path)._repr_html_()
    text = " ".join(Words(page).words)
    assert "A <b>small</b> study claim figures holds" in text
    assert "LRU hits <something>" in text
    assert "1 of 2 claims hold." in text


@pytest.mark.slow
def test_results_import_no_plot():
    code = (
        "import sys, tracekit, tracekit.replaying, tracekit.scoring, tracekit.studies;"
        "sys.exit('tracekit.plots' in sys.modules or 'matplotlib' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_parts_are_the_same_in_both_forms():
    rows = [("a", 1), ("a", 2), ("<b>", 3)]
    table = Table(
        [Column("name", lambda r: r[0], left=True), Column("how\nmany", lambda r: str(r[1]))],
        rows,
        group=lambda r: r[0],
        title="A & B",
    )
    assert as_text(["one\ntwo", table]) == (
        "one\ntwo\n\nA & B\n       how\nname  many\na        1\na        2\n\n<b>      3"
    )
    assert as_html(["one\ntwo", table]) == (
        "<p>one<br>two</p>\n<table><caption>A &amp; B</caption>"
        "<thead><tr><th>name</th><th>how<br>many</th></tr></thead>"
        "<tbody><tr><td>a</td><td>1</td></tr><tr><td>a</td><td>2</td></tr></tbody>"
        "<tbody><tr><td>&lt;b&gt;</td><td>3</td></tr></tbody></table>"
    )
