"""The part of the report that says what acting on the routing buys."""

from dataclasses import astuple, replace

import pytest
from report_pages import plain, report
from report_traces import open_written
from routing_traces import make_trace

from tracekit.analysis import default_budget
from tracekit.analysis.gains import Gain
from tracekit.figures import points
from tracekit.policies import load_policy
from tracekit.predictors import PrevToken
from tracekit.replaying import replay
from tracekit.report import acting, caching
from tracekit.report.accuracy import Accuracy, score
from tracekit.report.words import mib, percent
from tracekit.scoring import predict

NOTHING = {"gain": 0.001, "ci95_low": -0.002, "ci95_high": 0.003}
LITTLE = {"gain": 0.0002, "ci95_low": 0.0001, "ci95_high": 0.0003}
MORE = {"gain": 0.065, "ci95_low": 0.05, "ci95_high": 0.08}
LESS = {"gain": -0.02, "ci95_low": -0.03, "ci95_high": -0.01}
UNSURE = {"gain": 0.065, "ci95_low": float("nan"), "ci95_high": float("nan")}


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    return open_written(folder / "run.trace", gate_inputs=True, n_expert=32, top_k=4, n_tokens=160)


def compared(trace, predictors=None):
    cache = caching.replay_table(trace, ["lru"], None, 0, None)
    return acting.compare_with_lru(trace, score(trace, predictors, 0, None), cache, 0)


def test_the_table_holds_what_replay_says(trace):
    budget, n_tokens = default_budget(trace), 160
    runs = [
        load_policy("lru"),
        load_policy("follow"),
        load_policy("retention"),
        load_policy("prefetch"),
        load_policy("prefetch", {"base": "follow"}),
        load_policy("prefetch", {"predictor": "oracle"}),
        load_policy("prefetch", {"predictor": "oracle", "spec_max": 4}),
    ]
    records = replay(trace, runs, cache_bytes=budget).records
    found = compared(trace)
    assert found.budget == mib(budget)
    names = [(row.name, row.details) for row in found.rows]
    assert names == [
        ("lru", ""),
        ("follow", ""),
        ("retention", "stale-gate"),
        ("prefetch", "stale-gate"),
        ("prefetch", "stale-gate, base=follow"),
        ("prefetch", "oracle"),
        ("prefetch", "oracle, spec_max=4"),
    ]
    lru = records[0]
    for row, record in zip(found.rows, records, strict=True):
        assert row.decode == percent(record["hit_rate_decode"])
        waits = record.get("demand_bytes_decode", record["read_bytes_decode"])
        assert row.demand == mib(waits / n_tokens)
        assert row.ahead == mib((record["read_bytes_decode"] - waits) / n_tokens)
        if record is not lru:
            assert row.gain == points(record["hit_rate_decode"] - lru["hit_rate_decode"])
            low, high = (float(end) for end in row.interval.split(" to "))
            assert low <= float(row.gain) <= high


def test_the_page_shows_it_and_says_it_first(trace):
    page, found = report(trace), compared(trace)
    text = plain(page.by_id("acting")["text"])
    for row in found.rows:
        name, details, _, *cells = astuple(row)
        assert plain(" ".join([name, details, *cells])) in text
    assert plain(found.verdict) in text
    assert plain(found.verdict) in plain(page.by_id("short")["text"])
    assert "Hits are not speed" in text


def test_without_gate_inputs_what_prefetch_does_best_with_stands_in(tmp_path):
    trace = open_written(tmp_path / "x.trace", n_tokens=160)
    tried = ["prev-token", "static-hot", "layer-lag", "token-table"]
    policies = [load_policy("prefetch", {"predictor": name}) for name in tried]
    records = replay(trace, policies, cache_bytes=default_budget(trace)).records
    best = max(records, key=lambda r: r["hit_rate_decode"])
    name = best["params"]["predictor"]
    found = compared(trace, tried)
    on_follow = f"{name}, base=follow"
    assert [row.details for row in found.rows] == ["", "", name, name, on_follow, "oracle"]
    assert found.rows[3].decode == percent(best["hit_rate_decode"])
    assert found.verdict.endswith(
        f"stale-gate, which retention and prefetch act on by default, cannot run on this trace; "
        f"{name}, the best for prefetch of {', '.join(tried[:3])} and token-table, stands in, and "
        "says nothing about stale-gate."
    )
    (alone,) = {row.details for row in compared(trace, ["prev-token"]).rows[2:4]}
    assert alone == "prev-token"


class Own(PrevToken):
    """A predictor of one's own, which is not in the registry."""

    name = "own"


def test_what_has_seen_the_routing_or_cannot_be_found_does_not_stand_in(tmp_path):
    trace = open_written(tmp_path / "x.trace", n_tokens=160)
    scored = predict(trace, ["oracle", "static-hot-insample", Own, "random-guess"]).rows
    cache = caching.replay_table(trace, ["lru"], None, 0, None)
    found = acting.compare_with_lru(trace, Accuracy(scored=scored), cache, 0)
    assert found.lacks == "No predictor that was scored can be acted on here."


def test_policies_look_no_further_than_the_model_has_layers(tmp_path):
    trace = open_written(tmp_path / "x.trace", n_layer=2, gate_inputs=True)
    assert compared(trace).notes[0].startswith("stale-gate looks 1 MoE layer ahead")


def test_a_predictor_that_names_more_is_pointed_at(trace):
    stale, hot = predict(trace, ["stale-gate", "static-hot"]).rows
    scored = Accuracy(scored=[replace(stale, slot_accuracy=0.7), replace(hot, slot_accuracy=0.8)])
    cache = caching.replay_table(trace, ["lru"], None, 0, None)
    assert plain(acting.compare_with_lru(trace, scored, cache, 0).notes[-1]) == (
        "Not tried here: static-hot, which names more one layer ahead (80.0 %, not 70.0 %); "
        "`tracekit replay` does it with --policy prefetch --param prefetch.predictor=static-hot."
    )


def test_what_a_trace_cannot_tell_is_said():
    assert compared(make_trace(decode=0)).lacks.endswith("record with -n 1 or more.")
    page = report(make_trace(decode=0))
    assert "acting-caption" not in [e["attrs"].get("id") for e in page.elements]


def gain(**figures):
    """Return a row of gains in which only `figures` matter."""
    figures = {
        "hit_rate_decode": 0.4,
        "gain": 0.0,
        "ci95_low": 0.0,
        "ci95_high": 0.0,
        "demand_bytes_decode": 0,
        "speculative_bytes_decode": 0,
        **figures,
    }
    return Gain("any", {}, "lru", 1000, 0.1, False, 100, baseline_hit_rate_decode=0.4, **figures)


def comparison(retention, prefetch, *, ahead=0, follow=None, on_follow=None):
    perfect = gain(
        hit_rate_decode=0.9, demand_bytes_decode=20 << 20, speculative_bytes_decode=70 << 20
    )
    return acting.Comparison(
        predictor="stale-gate",
        tried=["stale-gate"],
        lru=gain(demand_bytes_decode=100 << 20),
        follow=follow or gain(),
        on_follow=on_follow or gain(),
        retention=gain(**retention),
        prefetch=gain(
            **prefetch,
            demand_bytes_decode=(100 << 20) - ahead,
            speculative_bytes_decode=3 * ahead,
        ),
        perfect=[perfect, replace(perfect, hit_rate_decode=0.8)],
        n_tokens=10,
    )


@pytest.mark.parametrize(
    ("retention", "prefetch", "sentence"),
    [
        (
            NOTHING,
            NOTHING,
            "Neither retention nor prefetch with stale-gate is distinguishable from LRU here",
        ),
        (
            LITTLE,
            LITTLE,
            "Neither retention nor prefetch with stale-gate moves LRU's hit rate by 0.1 points",
        ),
        (
            NOTHING,
            MORE,
            "Retention with stale-gate is not distinguishable from LRU here; "
            "prefetch adds 6.5 points (95 % interval +5.0 to +8.0)",
        ),
        (
            LESS,
            NOTHING,
            "Retention with stale-gate takes 2.0 points off (95 % interval -3.0 to -1.0); "
            "prefetch is not distinguishable from LRU here",
        ),
        (
            UNSURE,
            UNSURE,
            "Retention with stale-gate is 6.5 points above LRU, of too few tokens for an interval; "
            "prefetch is 6.5 points above LRU, of too few tokens for an interval",
        ),
    ],
)
def test_a_verdict_claims_no_more_than_the_intervals(retention, prefetch, sentence):
    assert acting.verdict(comparison(retention, prefetch)).startswith(sentence)


def test_a_verdict_names_what_is_read_and_waited_for():
    perfect = (
        "LRU's 40.0 % would be 90.0 %, with 9 MiB still read for a token. "
        "That is what reading one layer ahead buys LRU; a policy that evicts otherwise may gain more."
    )
    text = plain(acting.verdict(comparison(NOTHING, MORE, ahead=30 << 20)))
    assert "+8.0) and reads 1.60 times as much as LRU: if what it reads ahead arrives in " in text
    assert "time, a token waits for 7 MiB instead of 10 MiB. " in text
    assert text.endswith(perfect)
    text = plain(acting.verdict(comparison(NOTHING, NOTHING, ahead=30 << 20)))
    assert "from LRU here, and prefetch reads 1.60 times as much as LRU. Without a " in text
    of_follow = (
        "Without a prediction, the policy follow adds 9.0 points (95 % interval +8.0 to +10.0); "
        "prefetch on follow comes to 61.0 %, which is 12.0 points more than follow alone, and a token "
        "then waits for 3 MiB. "
    )
    follow = gain(hit_rate_decode=0.49, gain=0.09, ci95_low=0.08, ci95_high=0.1)
    ahead = gain(hit_rate_decode=0.61, demand_bytes_decode=30 << 20)
    text = plain(acting.verdict(comparison(NOTHING, MORE, follow=follow, on_follow=ahead)))
    assert of_follow in text
    text = plain(acting.verdict(comparison(NOTHING, MORE, follow=follow, on_follow=follow)))
    assert "+10.0); reading ahead adds nothing to that. " in text
    same = acting.verdict(comparison(NOTHING, NOTHING))
    assert "times as much" not in same
    assert "waits" not in same
