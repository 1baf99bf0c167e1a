"""The report as a file: what stands in it, and that text of a trace stays text."""

import base64
import hashlib
import itertools
import json
import re

import numpy as np
import pyarrow as pa
import pytest
from families import slow_unless
from report_pages import Page, plain, report
from report_traces import HOSTILE_NAME, HOSTILE_PROMPT, edit_facts, edit_pieces, open_written, write
from routing_traces import make_trace

import tracekit
from tracekit.analysis import default_budget
from tracekit.analysis.budget import DEFAULT_FRACTION
from tracekit.replaying import replay
from tracekit.report import build_report
from tracekit.report.caching import DEFAULT_POLICIES, FRACTIONS, default_budgets
from tracekit.report.matrix import NOT_LOOKED_UP, recorded_view
from tracekit.report.words import counted, mib, percent
from tracekit.routing.grid import decode_grid, decode_weights
from tracekit.scoring import predict
from tracekit.trace import Trace, TraceError, UsageError
from tracekit.trace.schema import DECODE, MISS


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return open_written(folder / "run.trace", gate_inputs=True, logits=True)


# To draw all pictures takes seconds; the slow suite looks at the page that a user gets.
FEW_PICTURES = {"cache": ("curves", "read-bytes"), "routing": ("popularity",)}
WITH_ALL_PICTURES = pytest.param(None, marks=pytest.mark.slow, id="all pictures")


@pytest.fixture(
    scope="module", params=[pytest.param(FEW_PICTURES, id="few pictures"), WITH_ALL_PICTURES]
)
def pictures(request):
    return request.param


@pytest.fixture(scope="module")
def text(trace, pictures):
    return build_report(trace, pictures=pictures, advice=False)


@pytest.fixture(scope="module")
def page(text):
    return Page(text)


def test_nothing_is_loaded_from_anywhere(page):
    for element in page.elements:
        for name in ("src", "href", "data", "action", "poster", "srcset"):
            address = element["attrs"].get(name)
            assert address is None or address.startswith(("#", "data:image/")), element["tag"]
    assert page.all("link") == page.all("iframe") == []


def test_the_policy_of_the_page_allows_its_own_scripts_and_styles_only(page):
    (policy,) = (e for e in page.all("meta") if "http-equiv" in e["attrs"])
    rules = dict(rule.split(" ", 1) for rule in policy["attrs"]["content"].split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    hashed = {
        "style-src": [e["text"] for e in page.all("style")],
        "script-src": [e["text"] for e in page.all("script") if "type" not in e["attrs"]],
    }
    for rule, texts in hashed.items():
        digests = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in texts]
        assert digests
        assert rules[rule].split() == [f"'sha256-{digest}'" for digest in digests]
    # What such a policy would block must not be there.
    assert not any(
        name == "style" or name.startswith("on") for e in page.elements for name in e["attrs"]
    )


def test_text_of_a_trace_stays_text(tmp_path):
    plain = report(open_written(tmp_path / "plain.trace"))
    hostile = report(open_written(tmp_path / "hostile.trace", hostile=True))
    (title,) = hostile.all("h1")
    assert title["text"] == HOSTILE_NAME
    assert any(e["text"] == HOSTILE_PROMPT for e in hostile.all("dd"))
    assert [e["tag"] for e in hostile.elements if e["tag"] in ("b", "img")] == [
        e["tag"] for e in plain.elements if e["tag"] in ("b", "img")
    ]
    kinds = {e["attrs"].get("type") for e in hostile.all("script")}
    assert kinds == {None, "application/json", "text/plain"}
    assert len([e for e in hostile.all("script") if "type" not in e["attrs"]]) == len(
        [e for e in plain.all("script") if "type" not in e["attrs"]]
    )


@pytest.mark.slow
def test_pieces_that_are_not_utf8_are_written_as_escapes(tmp_path):
    path = write(tmp_path / "x.trace", n_turns=1, prefill=0, n_tokens=2)
    edit_pieces(path, [b"caf\xc3\xa9", b"\xe2\x28"])
    assert json.loads(report(Trace.open(path)).blob("pieces-0")) == ["café", "\\xe2("]


def test_the_tables_hold_what_replay_and_predict_say(trace, page):
    text = " ".join(page.by_id("cache")["text"].split())
    asked = {"cache_bytes": default_budgets(trace), "params": {"bound.prices": 100}}
    for record in replay(trace, DEFAULT_POLICIES, **asked).records:
        name = record["policy"]
        limit = "≤ " if name == "bound" else ""
        name += " (prices=100)" if limit else ""
        decode = f"{limit}{100 * record['hit_rate_decode']:.1f} %"
        cumulative = f"{limit}{100 * record['hit_rate_cumulative']:.1f} %"
        assert f"{name} {decode} {cumulative}" in text
    text = " ".join(page.by_id("predictability")["text"].split())
    records = predict(trace).records
    assert len(records) == 14
    for record in records:
        assert f"{record['predictor']} {100 * record['slot_accuracy']:.1f} %" in text


def test_what_leaves_experts_out_says_what_that_costs(trace):
    page = report(trace, policies=["lru", "drop-cold"])
    (record,) = replay(trace, "drop-cold", cache_bytes=default_budget(trace)).records
    lost = f"changes what is computed: {100 * record['mass_lost']:.1f} % of router weight lost"
    assert lost in " ".join(page.by_id("cache")["text"].split())


def test_the_page_points_to_its_own_section(page):
    text = " ".join(page.by_id("predictability")["text"].split())
    assert "what acting on it does to hits and read bytes stands below." in text
    assert "--policy" not in text


def test_budgets_are_those_of_replay(trace):
    budgets = replay(trace, "lru", cache_fraction=[0.05, 0.1, 0.25, 0.5]).config["cache_bytes"]
    assert default_budgets(trace) == budgets
    assert default_budget(trace) in budgets


def test_a_fraction_that_the_recorded_budget_is_near_to_is_not_shown_twice():
    trace = tracekit.open_trace("bundled:tiny-moe-64e.trace")
    sizes = default_budgets(trace)
    assert trace.budget_bytes in sizes
    assert len(sizes) == len(FRACTIONS)


def test_budgets_under_the_token_cycle_and_overruns_are_marked(trace):
    cycle = int(trace.expert_bytes.sum()) * trace.top_k
    page = report(trace, policies=["lru", "layer-lru"], cache_bytes=[cycle // 4, 4 * cycle])
    marks = [e["text"] for e in page.all("span") if e["attrs"].get("class") == "mark"]
    records = replay(trace, ["lru", "layer-lru"], cache_bytes=[cycle // 4, 4 * cycle]).records
    assert marks == ["under one token cycle"]
    (table,) = (plain(e["text"]) for e in page.all("table") if "Gap to bound" in e["text"])
    assert table.count("*") == sum(r["over_budget"] + r["over_budget_decode"] for r in records)
    for record in records:
        peaks = [
            mib(record[f"peak_resident_bytes{phase}"]) + "*" * record[f"over_budget{phase}"]
            for phase in ("_decode", "")
        ]
        assert plain(" ".join(peaks)) in table
    assert any(r["over_budget"] and not r["over_budget_decode"] for r in records)
    assert any(r["over_budget_decode"] for r in records)


def test_what_overran_in_a_prompt_only_is_no_rival_of_lru(tmp_path):
    # A layer's share fits a decoded token, and a wide prompt does not fit all shares together.
    trace = open_written(
        tmp_path / "x.trace", n_tokens=60, n_expert=32, prefill=24, gate_inputs=True
    )
    budget = 4 * 5 * int(trace.expert_bytes[0])
    policies = ["lru", "layer-lru", "random", "prefetch", "belady", "bound"]
    records = replay(trace, policies[:3], cache_bytes=budget).records
    lru, over, kept = (100 * r["hit_rate_decode"] for r in records)
    assert records[1]["bound_class"] == "layer-shares"
    assert records[1]["over_budget"]
    assert not records[1]["over_budget_decode"]
    assert over > max(lru, kept)
    page = report(trace, policies=policies, cache_bytes=[budget])
    assert page.says(
        "The best of the other policies that act on no prediction and keep to the budget, random, "
        f"is {abs(kept - lru):.1f} points {'above' if kept > lru else 'below'} LRU. "
        f"layer-lru is {over - lru:.1f} points above LRU, but it did not keep to the budget: it "
        f"held as much as {mib(records[1]['peak_resident_bytes'])}."
    )


def test_the_bound_is_said_to_hold_for_reads_on_demand(trace):
    page = report(trace, policies=["lru", "prefetch", "bound"])
    assert (
        "No policy that reads only on demand, and keeps what it reads until the load ends, exceeds"
        in [e["text"] for e in page.all("dt")]
    )
    assert page.says(
        "which reads only on demand, and keeps what it reads until the load ends, could gain"
    )
    assert not page.says("The best of the other policies")


def test_a_policy_that_cannot_run_leaves_the_others_where_they_are(tmp_path):
    trace = open_written(tmp_path / "x.trace")
    page = report(trace, policies=["retention", "lru", "bound"])
    assert page.says("Left out: retention, because stale-gate needs the column 'gate_input'")
    names = {e["text"].split()[0] for e in page.all("th") if e["attrs"].get("class") == "policy"}
    assert {"lru", "bound"} <= names
    assert {e["text"].split(",")[0] for e in page.all("option")} == {"lru"}


def test_the_matrix_holds_every_routing(trace, page):
    config, grid = page.config(), decode_grid(trace)
    assert config["tokens"] == grid.n_tokens
    assert config["layers"] == grid.layer.tolist()
    experts = np.frombuffer(page.blob("experts-0"), np.uint8).reshape(grid.experts.shape)
    assert (experts == grid.experts).all()
    weights = np.frombuffer(page.blob("weights-0"), np.uint8).reshape(grid.experts.shape)
    error = weights * config["weightScale"] - decode_weights(trace, grid)
    assert np.abs(error).max() <= config["weightScale"]


def states_of(page, view, shape):
    """Unpack a view: four states a byte, the first in its lowest bits."""
    packed = b"".join(
        page.blob(e["attrs"]["id"])
        for e in page.all("script")
        if e["attrs"].get("id", "").startswith(f"view-{view}-")
    )
    flat = [byte >> shift & 3 for byte in packed for shift in (0, 2, 4, 6)]
    return np.array(flat[: int(np.prod(shape))]).reshape(shape)


def test_the_views_of_the_matrix_are_the_replays_of_the_table(trace, page):
    shape = decode_grid(trace).experts.shape
    records = replay(trace, DEFAULT_POLICIES[:-1], cache_bytes=default_budgets(trace)).records
    labels = {" ".join(e["text"].split()): int(e["attrs"]["value"]) for e in page.all("option")}
    assert len(labels) == len(records)
    for record in records:
        size = record["cache_mib"]
        label = f"{record['policy']}, {f'{size:,.0f}' if size >= 100 else f'{size:.3g}'} MiB"
        states = states_of(page, labels[label], shape)
        assert (states == MISS).sum() == record["lookups_decode"] - record["hits_decode"]
        missed = np.frombuffer(page.blob(f"missed-{labels[label]}"), "<u4")
        assert (missed == (states == MISS).sum(axis=(1, 2))).all()


def test_a_long_matrix_is_cut_into_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.report.matrix.CHUNK_LOOKUPS", 90)  # 11 tokens of 4 × 2
    trace = open_written(tmp_path / "x.trace")
    page, shape = report(trace), decode_grid(trace).experts.shape
    assert page.config()["chunkTokens"] == 11
    pieces = [page.blob(f"experts-{i}") for i in range(4)]
    assert (np.frombuffer(b"".join(pieces), np.uint8) == decode_grid(trace).experts.ravel()).all()
    # A chunk of 88 states fills 22 bytes exactly; the last one is padded.
    assert (states_of(page, 0, shape) == MISS).sum() == np.frombuffer(
        page.blob("missed-0"), "<u4"
    ).sum()


def test_recorded_residency_comes_first_and_keeps_its_codes():
    grid = decode_grid(make_trace())
    rows = make_trace().n_rows
    codes = np.random.default_rng(0).choice([0, 1, 2, 255], (rows, 2)).astype(np.uint8)
    trace = make_trace(residency=codes)
    states = recorded_view(trace, grid, "").states
    decoded = codes[trace.routing(["phase"])["phase"] == DECODE].reshape(states.shape)
    assert ((states == decoded) | ((decoded == 255) & (states == NOT_LOOKED_UP))).all()
    page = report(trace)
    assert page.all("option")[0]["text"] == "as recorded"
    assert (states_of(page, 0, states.shape) == states).all()
    assert page.says("prefetched")


def test_only_as_many_replays_as_the_page_has_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.report.caching.VIEW_LOOKUPS", 0)
    page = report(open_written(tmp_path / "x.trace"))
    assert len(page.all("option")) == 3
    assert page.says("To keep the page small, the matrix shows 3 of the 28 replays above.")


def test_more_than_256_experts_take_two_bytes(tmp_path):
    trace = open_written(tmp_path / "x.trace", n_expert=300)
    page = report(trace)
    experts = np.frombuffer(page.blob("experts-0"), "<u2")
    assert page.config()["wideExperts"]
    assert (experts == decode_grid(trace).experts.ravel()).all()


def test_weights_that_are_not_known_are_left_out():
    grid = decode_grid(make_trace())
    rows = make_trace().routing(["weights"])["weights"]
    none = report(make_trace(weights=np.full_like(rows, np.nan)))
    assert none.config()["weightScale"] is None
    rows = rows.copy()
    rows[-1, 0] = np.nan
    some = np.frombuffer(report(make_trace(weights=rows)).blob("weights-0"), np.uint8)
    assert (some == 255).sum() == 1
    assert some[-grid.top_k] == 255


def test_warnings_stand_before_the_figures(tmp_path):
    path = write(tmp_path / "x.trace")
    edit_facts(path, lambda facts: facts.update(complete=False))
    trace = Trace.open(path)
    (warning,) = trace.warnings
    text = build_report(trace, pictures={})
    assert text.count(warning) == 1
    assert text.index(warning) < text.index('id="short"')


MEAGRE = {
    "one layer": ({"n_layer": 1}, "as the model has only one MoE layer"),
    "no gate inputs": ({"gate_inputs": False}, "as the trace has no gate inputs"),
    "one token": ({"n_tokens": 1, "n_turns": 1, "prefill": 0}, "1 decoded token,"),
    "one expert": ({"n_expert": 1, "top_k": 1}, "1 expert of 1 each"),
}


@pytest.mark.parametrize("lacking", slow_unless(MEAGRE, "one layer", "one token"))
@pytest.mark.parametrize("pictures", slow_unless([False, True], False), ids=str)
def test_a_meagre_trace_has_a_report_that_says_what_it_lacks(tmp_path, lacking, pictures):
    sizes, sentence = MEAGRE[lacking]
    carried = {"gate_inputs": True, "logits": True}
    page = report(open_written(tmp_path / "x.trace", **carried | sizes), pictures)
    assert page.says(sentence)
    assert page.config()["tokens"] > 0


@pytest.mark.slow
def test_a_trace_without_a_decoded_token_has_a_report():
    page = report(make_trace(decode=0), pictures=True)
    assert page.says("The trace holds no decoded token; record with -n 1 or more")
    assert len(page.all("img")) == 3  # popularity, and the curves, which count prefills too
    assert page.all("script") == []
    assert page.by_id("cache-caption")


def test_a_trace_without_expert_sizes_shows_hit_rates_by_share_and_what_was_recorded():
    whole = make_trace()
    codes = np.zeros((whole.n_rows, 2), np.uint8)
    sized = make_trace(residency=codes)
    layers = sized.layers.set_column(1, "expert_bytes", pa.nulls(len(sized.layers), pa.int64()))
    columns = ["turn", "pass", "phase", "step", "layer", "experts", "weights", "residency"]
    rows = sized.routing(columns)
    table = pa.table(
        {
            name: pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 2)
            if values.ndim == 2
            else pa.array(values)
            for name, values in rows.items()
        }
    ).append_column("dropped", pa.nulls(len(rows["turn"]), pa.list_(pa.uint8(), 2)))
    trace = Trace.from_tables(sized.facts, layers, table)
    page = Page(build_report(trace, pictures={"cache": ["reuse", "curves"]}))
    assert [picture for picture in page.all("p") if "Not drawn" in picture["text"]]
    assert page.config()["expertBytes"] == [None] * 3
    assert page.all("option")[0]["text"] == "as recorded"
    assert page.says("does not say how many bytes an expert has: all are taken for equal")
    text = " ".join(page.by_id("cache")["text"].split())
    for row in replay(trace, ["lru", "bound"], cache_fraction=FRACTIONS).rows:
        share = plain(percent(row.cache_fraction))
        assert f"{plain(counted(row.budget, 'expert'))} {share} of all experts" in plain(text)
    main = replay(trace, ["lru"], cache_fraction=DEFAULT_FRACTION).rows[0]
    short = plain(" ".join(page.by_id("short")["text"].split()))
    assert f"with a cache of {plain(counted(main.budget, 'expert'))}" in short
    assert f"LRU finds {plain(percent(main.hit_rate_decode))} of the decode lookups" in short


def test_options_reach_the_figures(trace):
    page = report(trace, policies=["lru", "random"], predictors=["prev-token"], cache_bytes=[5000])
    cache = " ".join(page.by_id("cache")["text"].split())
    assert "random (seed=0)" in cache
    assert "belady" not in page.by_id("cache-caption")["text"]
    (caption,) = (e for e in page.all("table") if "Accuracy" in e["text"])
    assert "prev-token" in caption["text"]
    assert "static-hot" not in caption["text"]


def test_what_cannot_be_done_is_refused(trace, tmp_path):
    with pytest.raises(UsageError, match="No policy is called 'lrv'; did you mean 'lru'"):
        build_report(trace, policies=["lrv"])
    with pytest.raises(TraceError, match="stale-gate needs the column 'gate_input'"):
        build_report(open_written(tmp_path / "x.trace"), predictors=["stale-gate"])


def without_seconds(text):
    """Leave out the time that a fit took."""
    return re.sub(r"in \d+\.\d s", "", text)


@pytest.mark.slow  # a second page
def test_the_same_trace_gives_the_same_page(trace, text, pictures):
    again = build_report(trace, pictures=pictures, advice=False)
    assert without_seconds(again) == without_seconds(text)
    assert text.count("data:image/") == 3 or pictures is None


@pytest.mark.slow
def test_the_same_trace_gives_the_same_advice(tmp_path):
    trace = open_written(tmp_path / "x.trace")
    first, second = (without_seconds(build_report(trace, pictures=FEW_PICTURES)) for _ in range(2))
    assert first == second


def test_a_page_can_be_read_without_seeing_it(page, pictures):
    assert page.all("html")[0]["attrs"]["lang"] == "en"
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(page.all(landmark)) == 1
    levels = [int(e["tag"][1]) for e in page.elements if re.fullmatch(r"h[1-6]", e["tag"])]
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
    for table in page.all("table"):
        assert table["text"].strip()
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(e["attrs"].get("scope") for e in page.all("th"))
    images = page.all("img")
    assert len(images) == 3 if pictures else len(images) > 8
    assert all(len(e["attrs"]["alt"]) > 20 for e in images)
    labelled = {e["attrs"]["for"] for e in page.all("label")}
    assert labelled == {e["attrs"]["id"] for e in page.all("select") + page.all("input")}
    ids = [e["attrs"]["id"] for e in page.elements if "id" in e["attrs"]]
    assert len(ids) == len(set(ids))
    assert {e["attrs"]["href"][1:] for e in page.all("a")} <= set(ids)
