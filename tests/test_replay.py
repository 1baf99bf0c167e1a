"""`replay`: budgets, parameters, records, frames, notes, threads."""

import json
import math
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
from cache_runs import Run, runs
from families import few_and_all
from hypothesis import given, settings
from reference import lru

import tracekit
from tracekit.policies import LRU, POLICIES, PlainPolicy
from tracekit.replaying import build_batches, replay
from tracekit.replaying.threads import on_threads
from tracekit.trace import UsageError, synthesize
from tracekit.trace.errors import MissingDataError

MIB = 2**20
RUN = Run(
    sizes={1: MIB, 3: 2 * MIB},
    n_expert=4,
    top_k=2,
    passes=(
        (0, False, 0, {1: [(3, 0), (0, 2)], 3: [(1, 3)]}),
        (0, True, 2, {1: [(2, 1)], 3: [(3, 0)]}),
        (0, True, 3, {1: [(0, 2)], 3: [(3, 1)]}),
        (0, True, 4, {1: [(2, 1)], 3: [(0, 3)]}),
    ),
)
TRACE = RUN.trace()


def test_a_record_holds_what_the_json_promises():
    (record,) = replay(TRACE, "lru", cache_mib=6).records
    assert list(record) == [
        "policy",
        "params",
        "cache_bytes",
        "cache_mib",
        "cache_fraction",
        "cache_slots",
        "under_token_cycle",
        "bypass",
        "lookups",
        "hits",
        "hit_rate_cumulative",
        "lookups_decode",
        "hits_decode",
        "hit_rate_decode",
        "read_bytes",
        "read_bytes_decode",
        "bound_class",
        "bound_hit_rate_cumulative",
        "bound_hit_rate_decode",
        "gap_to_bound",
        "gap_to_bound_decode",
        "peak_resident_bytes",
        "peak_resident_bytes_decode",
        "over_budget",
        "over_budget_decode",
    ]
    expected = lru(RUN.loads, RUN.layer_sizes, 6 * MIB)
    hits = expected.count()
    assert record["lookups"] == sum(len(load.distinct) for load in RUN.loads) == 17
    assert record["hits"] == sum(hits)
    assert record["hits_decode"] == sum(
        h for h, load in zip(hits, RUN.loads, strict=True) if load.decode
    )
    assert record["lookups_decode"] == 12
    assert record["hit_rate_decode"] == record["hits_decode"] / 12
    assert record["peak_resident_bytes"] == max(expected.resident)
    assert record["peak_resident_bytes_decode"] == max(expected.resident[4:])
    assert record["read_bytes"] == sum(
        (len(load.distinct) - n) * RUN.sizes[load.layer]
        for load, n in zip(RUN.loads, hits, strict=True)
    )


@settings(max_examples=20, deadline=None)
@given(run=runs())
def test_totals_are_the_sums_of_the_layers(run):
    result = replay(run.trace(), ["lru", "layer-lfu"], cache_fraction=0.4, per_layer=True)
    for record in result.records:
        for name in ("lookups", "hits", "read_bytes", "lookups_decode", "hits_decode"):
            assert record[name] == sum(layer[name] for layer in record["layers"])


def test_per_layer_figures_of_the_bound_are_null():
    (record,) = replay(TRACE, "bound", cache_mib=6, per_layer=True).records
    assert [layer["layer"] for layer in record["layers"]] == [1, 3]
    assert all(layer["hits"] is None and layer["read_bytes"] is None for layer in record["layers"])
    assert record["peak_resident_bytes"] is None
    assert record["over_budget"] is None
    assert record["gap_to_bound"] is None


def test_a_rate_without_lookups_is_null():
    prompt = Run(sizes={0: 1}, n_expert=2, top_k=1, passes=((0, False, 0, {0: [(0,), (1,)]}),))
    (record,) = replay(prompt.trace(), "lru", cache_bytes=5).records
    assert record["hit_rate_cumulative"] == 0
    assert record["hit_rate_decode"] is None
    assert record["peak_resident_bytes_decode"] is None
    assert record["over_budget_decode"] is None


@pytest.mark.parametrize(
    "names",
    few_and_all(c.name for c in POLICIES if not (c.needs_predictor or c.needs_popularity)),
)
def test_a_trace_without_a_routing_has_no_rates(names):
    trace = Run(sizes={1: 10, 3: 20}, n_expert=4, top_k=2, passes=()).trace()
    result = replay(trace, names, cache_bytes=[0, 15], per_layer=True)
    for record in result.records:
        assert (record["lookups"], record["hits"], record["read_bytes"]) == (0, 0, 0)
        assert record["hit_rate_cumulative"] is None
        assert record["gap_to_bound"] is None
    assert len(result.layers) == 4 * len(names)


def test_budgets_in_three_units_each_once_in_the_order_given():
    result = replay(
        TRACE, "lru", cache_mib=[6, 0], cache_fraction=[0.5, 1], cache_bytes=[6 * MIB, 7]
    )
    bank = 4 * 3 * MIB
    asked = [6 * MIB, 0, bank, 7]  # half of the bank is the 6 MiB again
    assert [r["cache_bytes"] for r in result.records] == asked


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"cache_mib": -5}, "cache_mib takes numbers from 0 to 4.39805e+12, not -5."),
        ({"cache_mib": math.nan}, "cache_mib takes numbers from 0 to 4.39805e+12, not nan."),
        ({"cache_mib": [1, math.inf]}, "cache_mib takes numbers from 0 to 4.39805e+12, not inf."),
        ({"cache_mib": "abc"}, "cache_mib takes numbers from 0 to 4.39805e+12, not 'abc'."),
        ({"cache_fraction": 1.5}, "cache_fraction takes numbers from 0 to 1, not 1.5."),
        ({"cache_bytes": 1.5}, "cache_bytes takes whole numbers of bytes, not 1.5."),
        ({"cache_bytes": -1}, "cache_bytes takes numbers from 0 to 4.61169e+18, not -1."),
        ({"cache_mib": []}, "There is no cache budget to replay at; give at least one."),
    ],
)
def test_a_size_that_is_none_is_refused(sizes, sentence):
    with pytest.raises(UsageError) as error:
        replay(TRACE, "lru", **sizes)
    assert str(error.value) == sentence


def test_without_arguments_three_policies_run_at_parts_of_the_bank():
    result = replay(TRACE)
    assert result.config["policies"] == ["lru", "belady", "bound"]
    bank = 12 * MIB
    assert result.config["cache_bytes"] == [round(bank * part) for part in (0.1, 0.25, 0.5)]


def test_a_recorded_budget_is_the_default():
    recorded = RUN.trace(cache_bytes=6 * MIB)
    assert replay(recorded, "lru").config["cache_bytes"] == [6 * MIB]


def test_the_gap_is_to_the_bound_whether_asked_for_or_not():
    alone = replay(TRACE, "lru", cache_mib=6).records[0]
    both = replay(TRACE, ["lru", "bound"], cache_mib=6).records
    assert alone == both[0]
    assert alone["gap_to_bound"] == both[1]["hit_rate_cumulative"] - both[0]["hit_rate_cumulative"]


def test_a_policy_in_shares_has_a_bound_of_its_own():
    """Its layers may overrun the budget of all, and each keeps to its share or its last load."""
    record = replay(TRACE, "layer-lru", cache_mib=2).records[0]
    assert record["over_budget_decode"]
    assert record["bound_class"] == "layer-shares"
    assert record["gap_to_bound"] >= 0


def test_a_gap_is_null_where_a_policy_held_more_than_the_bound_allows():
    class Twice(LRU):
        name = "twice"

        def simulate(self, batches, budgets, per_lookup=False):
            cells = super().simulate(batches, 2 * budgets, per_lookup)
            return [replace(cell, budget_bytes=cell.budget_bytes // 2) for cell in cells]

    class TwiceItsShare(Twice):
        in_shares = True

    for policy in (Twice(), TwiceItsShare()):
        record = replay(TRACE, policy, cache_mib=6).records[0]
        assert record["over_budget"]
        assert record["bound_class"] is record["gap_to_bound"] is None


def test_parameters_make_a_row_for_each_value():
    result = replay(TRACE, ["random", "lru"], cache_mib=4, params={"random.seed": [1, 2]})
    assert [(r["policy"], r["params"]) for r in result.records] == [
        ("random", {"seed": 1}),
        ("random", {"seed": 2}),
        ("lru", {}),
    ]
    text = replay(TRACE, "random", cache_mib=4, params={"random.seed": "1,2"})
    assert text.records == result.records[:2]


def test_parameters_and_seed_may_be_of_numpy():
    result = replay(TRACE, "random", cache_bytes=3, params={"random.seed": np.arange(2)})
    assert [r["params"] for r in result.records] == [{"seed": 0}, {"seed": 1}]
    result = replay(TRACE, "random", cache_bytes=np.array([3]), seed=np.int64(1))
    assert json.loads(json.dumps(result.to_json()))["results"][0]["params"] == {"seed": 1}


def test_the_seed_is_for_policies_that_are_given_none():
    seeded = replay(TRACE, "random", cache_mib=4, seed=5).records
    assert seeded[0]["params"] == {"seed": 5}
    assert replay(TRACE, "random", cache_mib=4, seed=5, params={"random.seed": 6}).records[0][
        "params"
    ] == {"seed": 6}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"policies": "belay"}, "No policy is called 'belay'; did you mean 'belady'?"),
        ({"policies": []}, "There is no policy to replay; name at least one."),
        (
            {"policies": "lru", "params": {"random.seed": 1}},
            "A parameter is set for 'random', which is not replayed here.",
        ),
        (
            {"policies": "random", "params": {"seed": 1}},
            "params takes POLICY.FIELD, as in 'random.seed', not 'seed'.",
        ),
        ({"policies": "lru", "jobs": 0}, "jobs takes a number of threads, 1 or more, not 0."),
        (
            {"policies": "lru", "validate": True},
            "the trace carries no residency, so a replay cannot be validated against it; "
            "record with a streaming cache to have it.",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(arguments, sentence):
    with pytest.raises(UsageError) as error:
        replay(TRACE, **arguments)
    assert str(error.value) == sentence


def test_a_policy_may_be_an_instance_or_a_list_in_one_word():
    assert replay(TRACE, LRU(), cache_mib=4).records == replay(TRACE, "lru", cache_mib=4).records
    names = [r["policy"] for r in replay(TRACE, "lru, belady", cache_mib=4).records]
    assert names == ["lru", "belady"]


def test_frames_have_one_row_each_and_nulls_where_there_is_no_figure():
    result = replay(TRACE, ["random", "layer-lru", "bound"], cache_mib=[2, 6], per_layer=True)
    frame = result.frame
    assert len(frame) == 6
    assert frame["params"].tolist()[:2] == [{"seed": 0}] * 2
    assert frame["label"].tolist()[:3] == ["random seed=0", "random seed=0", "layer-lru"]
    assert frame["hits"].dtype == "Int64"
    assert frame["over_budget"].isna().tolist() == [False] * 4 + [True] * 2
    assert np.isnan(frame["gap_to_bound"]).tolist()[4:] == [True, True]
    assert "layers" not in frame
    assert len(result.layers) == 12
    assert result.layers["layer"].tolist() == [1, 3] * 6
    assert replay(TRACE, "lru", cache_mib=2).layers is None


def test_the_json_is_plain_and_complete():
    result = replay(TRACE, ["lru", "bound"], cache_mib=[2, 6], per_layer=True, seed=3)
    text = json.dumps(result.to_json(), allow_nan=False)
    data = json.loads(text)
    assert data["schema"] == "tracekit.replay/1"
    assert data["config"] == {
        "policies": ["lru", "bound"],
        "bank_bytes": 12 * MIB,
        "token_cycle_bytes": 6 * MIB,
        "tokens_decode": 3,
        "passes_decode": 3,
        "cache_bytes": [2 * MIB, 6 * MIB],
        "cache_fraction": [1 / 6, 0.5],
        "seed": 3,
        "bypass": False,
        "per_layer": True,
        "validate": False,
        "flash_mib_s": None,
        "time": None,
        "cache_slots": None,
        "train": None,
        "skip": 0,
        "warm": None,
        "pin_from": None,
    }
    assert data["provenance"]["trace_digest"] == TRACE.digest
    assert data["provenance"]["tracekit"] == tracekit.__version__
    assert data["results"] == result.records
    assert data["notes"] == result.notes


def test_notes_name_the_token_cycle_and_the_cliff():
    cycle, cliff, over = replay(TRACE, ["lru", "layer-lru"], cache_mib=[0, 2, 8]).notes
    assert cycle == (
        "One token cycle, the bytes a token touches over all layers, is 6 MiB; "
        "under it: 0 and 2 MiB."
    )
    assert cliff.startswith("At 0 and 2 MiB global LRU never hits while decoding (0.0 %)")
    assert over.startswith("layer-lru held more than its budget while decoding at 0 and 2 MiB")
    (note,) = replay(TRACE, "lru", cache_mib=8).notes
    assert note.endswith("is 6 MiB; no budget is under it.")


def test_validation_counts_the_decode_lookups_that_differ():
    batches = build_batches(TRACE)
    (cell,) = LRU().simulate(batches, np.array([6 * MIB]), per_lookup=True)
    residency = np.full((9, 2), 255, np.uint8)
    residency[3:] = cell.hit[5:].reshape(6, 2)
    residency[residency == 1] = 2  # prefetched counts as resident
    as_recorded = RUN.trace(residency=residency)
    record = replay(as_recorded, ["lru", "bound"], cache_mib=6, validate=True).records
    assert record[0]["validation"] == {"lookups": 12, "mismatches": 0}
    assert "validation" not in record[1]
    residency[4, 1] = 0 if residency[4, 1] else 1
    one_off = RUN.trace(residency=residency)
    frame = replay(one_off, "lru", cache_mib=6, validate=True).frame
    assert frame["validation_mismatches"].tolist() == [1]


def test_validation_passes_over_dropped_and_unrecorded_lookups():
    dropped = np.zeros((9, 2), np.uint8)
    dropped[3, 0] = 1
    residency = np.zeros((9, 2), np.uint8)
    residency[4, 1] = 255
    trace = RUN.trace(dropped=dropped, residency=residency)
    (record,) = replay(trace, "lru", cache_mib=0, validate=True).records
    assert record["validation"] == {"lookups": 10, "mismatches": 0}


def test_a_result_says_what_it_is():
    result = replay(TRACE, ["lru", "bound"], cache_mib=[6, 7])
    assert repr(result).endswith(": 4 rows of lru, bound>")


def test_validation_needs_the_size_of_the_engines_cache():
    trace = RUN.trace(residency=np.zeros((9, 2), np.uint8))
    with pytest.raises(UsageError, match="does not say how large its engine's cache was"):
        replay(trace, "lru", validate=True)


def test_another_cache_than_the_engines_is_said_to_differ():
    trace = RUN.trace(6 * MIB, residency=np.zeros((9, 2), np.uint8))
    said = "The recording had a cache of 6 MiB; of another policy or size lookups differ."
    assert said not in replay(trace, "lru", validate=True).notes
    assert said in replay(trace, "lru", cache_mib=5, validate=True).notes
    assert said in replay(trace, ["lru", "lfu"], validate=True).notes


def test_how_long_flash_is_busy():
    plain, timed = (
        replay(TRACE, "lru", cache_mib=6),
        replay(TRACE, "lru", cache_mib=6, flash_mib_s=500),
    )
    (record,) = timed.records
    busy_ms, of_pass = (record.pop(f"flash_ms_per_{of}_decode") for of in ("token", "pass"))
    assert of_pass == busy_ms  # every pass has one token
    assert record == plain.records[0]
    assert busy_ms == record["read_bytes_decode"] / MIB / 3 / 500 * 1000
    assert timed.config["flash_mib_s"] == 500
    with pytest.raises(UsageError, match="a rate above 0, not nan"):
        replay(TRACE, "lru", flash_mib_s=math.nan)


def test_a_note_says_that_a_learned_guess_is_of_half_the_tokens():
    trace = synthesize(n_layer=4, n_tokens=40)
    params = {"retention.predictor": ["layer-lag", "layer-lag@lag=2", "prev-token"]}
    result = replay(trace, "retention", cache_fraction=0.5, params=params)
    (note,) = [note for note in result.notes if "acts on" in note]
    assert note.startswith("retention acts on layer-lag for only 50 % of the decoded tokens")


def test_what_a_trace_cannot_run_is_left_out():
    near = {"retention.horizon": 1, "prefetch.horizon": 1}
    result = replay(TRACE, ["lru", "retention", "prefetch"], cache_mib=6, params=near)
    assert [r["policy"] for r in result.records] == ["lru"]
    assert result.config["policies"] == ["lru"]
    for note, policy in zip(result.notes, ("retention", "prefetch"), strict=False):
        assert note.startswith(f"Left out: {policy}, because stale-gate needs the column")
        assert "prev-token" in note
    able = {"retention.predictor": "prev-token", **near}
    result = replay(TRACE, ["lru", "retention", "prefetch"], cache_mib=6, params=able)
    assert [r["policy"] for r in result.records] == ["lru", "retention"]
    with pytest.raises(MissingDataError, match="stale-gate needs the column") as caught:
        replay(TRACE, ["retention", "prefetch"], cache_mib=6, params=near)
    assert caught.value.exit_code == 1


def test_gaps_to_the_bound_are_of_both_rates():
    lru, bound = replay(TRACE, ["lru", "bound"], cache_mib=6).records
    for gap, rate in (
        ("gap_to_bound", "hit_rate_cumulative"),
        ("gap_to_bound_decode", "hit_rate_decode"),
    ):
        assert lru[gap] == bound[rate] - lru[rate]
        assert bound[gap] is None


def test_a_class_is_as_good_as_its_name():
    of_class = replay(TRACE, [LRU], cache_mib=6, params={})
    assert of_class.records == replay(TRACE, "lru", cache_mib=6).records
    with pytest.raises(UsageError, match="given by its name or class, not as 7"):
        replay(TRACE, [7])


def test_progress_counts_cells():
    seen = []
    replay(TRACE, ["lru", "belady"], cache_mib=range(10), progress=lambda *at: seen.append(at))
    done, totals = zip(*seen, strict=True)
    assert done == tuple(sorted(done))
    assert set(totals) == {30}
    assert done[-1] == 30


@pytest.mark.parametrize("jobs", [1, 2, 16])
def test_threads_change_nothing(jobs):
    policies = ["lru", "lfu", "random", "belady", "layer-lru", "bound"]
    budgets = list(range(0, 13, 2))
    result = replay(TRACE, policies, cache_mib=budgets, jobs=jobs)
    assert result.records == replay(TRACE, policies, cache_mib=budgets).records


class Stuck(PlainPolicy):
    name = "stuck"
    entered, let_go, left = threading.Event(), threading.Event(), threading.Event()

    def touch(self, key, now, hit):
        self.entered.set()
        self.let_go.wait(60)
        self.left.set()

    def victim(self, evictable):
        return next(iter(evictable))


def test_an_interrupt_does_not_wait_for_the_threads():
    def interrupt():
        Stuck.entered.wait(60)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        replay(TRACE, Stuck(), cache_mib=100)
    assert not Stuck.left.is_set()
    Stuck.let_go.set()


def test_what_a_thread_raises_is_raised():
    def work(item):
        if item == 3:
            raise UsageError("three")
        return item

    with pytest.raises(UsageError, match="three"):
        list(on_threads(work, range(6), 2))
    assert sorted(on_threads(work, range(3), 2)) == [(0, 0), (1, 1), (2, 2)]
    assert list(on_threads(work, [], 2)) == []
