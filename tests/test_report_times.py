"""The report: it begins with the advice, and says how long a token takes where a trace says it."""

import pytest
from families import ranking_without
from report_pages import Page, plain, report
from timed_runs import timed

from tracekit.advice.advise import advise
from tracekit.replaying import replay
from tracekit.report import build_report
from tracekit.trace import synthesize


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return timed(tmp_path_factory.mktemp("timed"))


@pytest.fixture(scope="module")
def page(trace, left_out):
    with ranking_without(left_out):
        return Page(build_report(trace, pictures={"time": ("time", "time-curves")}))


@pytest.mark.usefixtures("fewer_ranked")
def test_the_page_begins_with_the_advice(trace, page):
    short, advice = plain(page.by_id("short")["text"]), advise(trace)
    at = 0
    for title, sentences, commands in advice.by_topic():
        for words in (title, *sentences, *commands):
            at = short.index(plain(words), at)
    assert all(plain(sentence) in short for sentence in advice.lacking)
    assert any("ms instead of" in finding.sentence for finding in advice.findings)


@pytest.mark.slow
def test_a_budget_of_the_report_is_that_of_the_advice(trace):
    page = report(trace, advice=True, cache_bytes=[48 << 20])
    assert plain(advise(trace, cache_bytes=48 << 20).findings[0].sentence) in plain(
        page.by_id("short")["text"]
    )


def test_the_table_has_the_times_of_a_replay(trace, page):
    text = plain(page.by_id("cache")["text"])
    assert "Typical tokens/s 95 % interval, tokens/s" in text
    time = replay(trace, "lru", cache_mib=96, time=True).rows[0].time
    ends = [f"{1000 / ms:.3g}" for ms in (time.typical_high_ms, time.typical_low_ms)]
    assert f"{1000 / time.typical_ms:.3g} {ends[0]} … {ends[1]}" in text
    groups = [th for th in page.all("th") if th["attrs"].get("scope") == "rowgroup"]
    assert {th["attrs"]["colspan"] for th in groups} == {"9"}


def test_both_pictures_are_drawn(page):
    captions = [figure["text"] for figure in page.all("figcaption")]
    assert any(text.startswith("Time of a decoded token by what it reads: ") for text in captions)
    assert any(text.startswith("Tokens a second by cache budget") for text in captions)
    assert len(page.all("img")) == 2


def test_a_trace_without_times_says_so_once():
    page = report(synthesize(3, 8, 2, 40, 2, 4), pictures=False, advice=False)
    assert "tokens/s" not in page.by_id("cache")["text"]
    page = Page(build_report(synthesize(3, 8, 2, 40), pictures={"time": ("time", "time-curves")}))
    (lacks,) = [p["text"] for p in page.all("p") if "Not drawn" in p["text"]]
    assert "has no wall_ms of its tokens" in lacks


@pytest.mark.slow  # a page of its own each; other pages of the fast suite are without advice
@pytest.mark.parametrize("options", [{"advice": False}, {"advice": True, "bypass": True}], ids=str)
def test_without_advice_the_main_figures_are_put_into_words(trace, options):
    short = report(trace, **options).by_id("short")["text"]
    assert "global LRU finds" in plain(short)
    assert "tracekit replay" not in short
