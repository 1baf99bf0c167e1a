"""The classic policies beside LRU, LFU and Belady; and where `pin` learns what is hot.

What replays them is in the slow suite (`families.RARE_POLICIES`).
"""

import json
import re

import numpy as np
import pytest
from cache_runs import EXAMPLES, Run, cases, long_case
from cli_helpers import run, write_csv
from families import slow_if_rare
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit import open_trace
from tracekit.formats import ExpertCounts
from tracekit.policies import Pin, load_policy
from tracekit.replaying import build_batches, inputs_of, replay
from tracekit.trace import TraceError, UsageError
from tracekit.trace.errors import MissingDataError

# ---- what they become at the ends of their parameters -------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "params", "same"),
    [
        ("lrfu", {"half_life": 0.01}, "lru"),
        ("lrfu", {"half_life": 1e18}, "lfu"),
        ("heat", {"hits": 10**9}, "lru"),
        ("pin", {"share": 0}, "lru"),
    ],
)
@settings(max_examples=EXAMPLES, deadline=None)
@given(case=st.one_of(cases(max_layers=1), st.builds(long_case)))
def test_at_an_end_of_its_parameter_it_is(spec, params, same, case):
    batches, budgets = case.batches, np.array(case.budgets)
    cells = load_policy(spec, params).simulate(batches, budgets, per_lookup=True)
    others = load_policy(same).simulate(batches, budgets, per_lookup=True)
    for cell, other in zip(cells, others, strict=True):
        assert cell.hit.tolist() == other.hit.tolist()
        assert cell.resident_bytes.tolist() == other.resident_bytes.tolist()


@pytest.mark.parametrize(
    ("spec", "params", "sentence"),
    [
        ("lrfu", {"half_life": "0"}, "lrfu: half_life must be 0.01 rounds or more."),
        ("heat", {"hits": "-1"}, "heat: hits must be 0 or more."),
        ("pin", {"share": "1.5"}, "pin: share must be from 0 to 1."),
    ],
)
def test_a_parameter_out_of_its_range_is_refused(spec, params, sentence):
    with pytest.raises(UsageError) as error:
        load_policy(spec, params)
    assert str(error.value) == sentence


# ---- a scan, which each of them answers in its own way ------------------------------------------

# Expert 0 is used again and again; then a long scan passes, and it is asked for once more.
SCAN = Run({0: 1}, 40, 1, tuple((0, True, t, {0: [(e,)]}) for t, e in enumerate(
    [0, 1, 0, 1, 0, 0, 0, 0, *range(2, 32), 0]
)))  # fmt: skip


@pytest.mark.parametrize(
    ("name", "survives"),
    slow_if_rare(
        [
            ("lru", False),
            ("arc", True),
            ("s3-fifo", True),
            ("lrfu", True),
            ("lfu-da", True),
            ("heat", True),
        ]
    ),
)
def test_a_scan_pushes_out_what_is_used_often_or_not(name, survives):
    (cell,) = load_policy(name).simulate(build_batches(SCAN.trace()), np.array([10]), True)
    assert bool(cell.hit[-1]) == survives


# ---- one request at a time, as the papers write it down -----------------------------------------


class TextbookARC:
    """ARC(c) of figure 4 in Megiddo and Modha (2003), line by line, with room for c entries."""

    def __init__(self, c):
        self.c, self.p = c, 0
        self.t1, self.t2, self.b1, self.b2 = [], [], [], []  # the least recent first

    def request(self, x):
        c, t1, t2, b1, b2 = self.c, self.t1, self.t2, self.b1, self.b2
        if x in t1 or x in t2:
            (t1 if x in t1 else t2).remove(x)
            t2.append(x)
            return True
        if x in b1:
            self.p = min(self.p + (1 if len(b1) >= len(b2) else len(b2) / len(b1)), c)
            self.replace(x)
            b1.remove(x)
            t2.append(x)
        elif x in b2:
            self.p = max(self.p - (1 if len(b2) >= len(b1) else len(b1) / len(b2)), 0)
            self.replace(x)
            b2.remove(x)
            t2.append(x)
        else:
            if len(t1) + len(b1) == c:
                if len(t1) < c:
                    b1.pop(0)
                    self.replace(x)
                else:
                    t1.pop(0)
            elif len(t1) + len(t2) + len(b1) + len(b2) >= c:
                if len(t1) + len(t2) + len(b1) + len(b2) == 2 * c:
                    b2.pop(0)
                self.replace(x)
            t1.append(x)
        return False

    def replace(self, x):
        over = len(self.t1) > self.p or (x in self.b2 and len(self.t1) == self.p)
        if len(self.t1) >= 1 and over:
            self.b1.append(self.t1.pop(0))
        else:
            self.b2.append(self.t2.pop(0))


class TextbookS3FIFO:
    """Algorithm 1 of Yang et al. (2023), but eviction stops as soon as there is room for one."""

    def __init__(self, c):
        self.c = c
        self.small, self.main, self.ghost, self.freq = [], [], [], {}  # the tail first

    def request(self, x):
        if x in self.small or x in self.main:
            self.freq[x] = min(self.freq[x] + 1, 3)
            return True
        while self.is_full():
            if len(self.small) >= 0.1 * self.c:
                self.evict_small()
            else:
                self.evict_main()
        if x in self.ghost:
            self.ghost.remove(x)
            self.main.append(x)
        else:
            self.small.append(x)
        self.freq[x] = 0
        return False

    def is_full(self):
        return len(self.small) + len(self.main) == self.c

    def evict_small(self):
        evicted = False
        while not evicted and self.small and self.is_full():
            t = self.small.pop(0)
            if self.freq[t] > 1:
                self.main.append(t)
                self.freq[t] = 0
                if len(self.main) > 0.9 * self.c:
                    self.evict_main()
            else:
                self.ghost.append(t)
                if len(self.ghost) > 0.9 * self.c:
                    self.ghost.pop(0)
                evicted = True

    def evict_main(self):
        evicted = False
        while not evicted and self.main:
            t = self.main.pop(0)
            if self.freq[t] > 0:
                self.main.append(t)
                self.freq[t] -= 1
            else:
                evicted = True


@pytest.mark.slow
@pytest.mark.parametrize(("name", "textbook"), [("arc", TextbookARC), ("s3-fifo", TextbookS3FIFO)])
@pytest.mark.parametrize("capacity", [1, 2, 7, 20])
def test_one_request_at_a_time_it_is_the_paper(name, textbook, capacity):
    rng = np.random.default_rng(capacity)
    popular = rng.permutation(40)[np.minimum(rng.zipf(1.3, 3000) - 1, 39)]
    scans = np.arange(3000) // 5 % 40
    requests = np.where(np.arange(3000) // 100 % 3 == 2, scans, popular).tolist()
    passes = tuple((0, True, t, {0: [(e,)]}) for t, e in enumerate(requests))
    batches = build_batches(Run({0: 3}, 40, 1, passes).trace())
    (cell,) = load_policy(name).simulate(batches, np.array([3 * capacity]), per_lookup=True)
    paper = textbook(capacity)
    assert cell.hit.tolist() == [paper.request(e) for e in requests]
    assert cell.hit.any()


# ---- where the closures stand -------------------------------------------------------------------


@pytest.mark.slow
def test_the_mean_closure_is_what_is_known(phone_traces):
    """(policy − LRU) / (Belady − LRU) of decode hit rates, the mean over five budgets, in percent."""
    trace = open_trace(phone_traces / "traces" / "bundled-2026-11.trace")
    names = ["arc", "s3-fifo", "lrfu", "lfu-da", "heat", "pin"]
    result = replay(trace, ["lru", "belady", *names], cache_mib=[1.0, 1.5, 2.4, 3.6, 4.8])
    rates = {
        name: np.array([r["hit_rate_decode"] for r in result.records if r["policy"] == name])
        for name in ("lru", "belady", *names)
    }
    gap = rates["belady"] - rates["lru"]
    closure = {name: 100 * float(((rates[name] - rates["lru"]) / gap).mean()) for name in names}
    known = {"arc": 10.4, "s3-fifo": 16.0, "lrfu": 21.4, "lfu-da": 7.5, "heat": -39.9, "pin": -26.7}
    assert closure == pytest.approx(known, abs=0.05)


# ---- where pin learns ---------------------------------------------------------------------------


def tokens(*experts, turn=0, decode=True):
    """One token a pass, at two layers that select the same expert."""
    return [(turn, decode, t, {1: [(e,)], 3: [(e,)]}) for t, e in enumerate(experts)]


def trace_of(*turns):
    passes = [p for turn, experts in enumerate(turns) for p in tokens(*experts, turn=turn)]
    return Run({1: 1, 3: 1}, 4, 1, tuple(passes)).trace()


THREE = trace_of([0, 0, 1], [1, 2], [2, 2, 2])
OTHER = trace_of([3, 3, 1])
COUNTS = ExpertCounts(np.array([[5, 0, 0, 1], [0, 2, 0, 0]]), (1, 3), "counts.json", "none")


def popularity_of(trace, **given):
    return inputs_of(Pin(), trace, build_batches(trace), **given).popularity


def test_it_learns_on_the_other_turns():
    known = popularity_of(THREE)
    of_a_layer = [[0, 1, 4, 0], [2, 1, 3, 0], [2, 2, 1, 0]]
    assert known.counts.tolist() == [2 * row for row in of_a_layer]
    assert known.row_of(np.array([0, 2, 1])).tolist() == [0, 2, 1]


def test_it_learns_on_another_trace():
    known = popularity_of(THREE, train=OTHER)
    assert known.counts.tolist() == [2 * [0, 1, 0, 2]]
    assert known.row_of(np.array([0, 2])).tolist() == [0, 0]


def test_counts_go_before_both():
    known = popularity_of(OTHER, counts=COUNTS, train=THREE)
    assert known.counts.tolist() == [[5, 0, 0, 1, 0, 2, 0, 0]]


def test_a_prompt_counts_token_by_token():
    passes = [(0, False, 0, {1: [(0,), (0,), (1,)], 3: [(2,)]}), *tokens(3, turn=1)]
    trace = Run({1: 1, 3: 1}, 4, 1, tuple(passes)).trace()
    assert popularity_of(trace).counts[1].tolist() == [2, 1, 0, 0, 0, 0, 1, 0]


def test_a_single_turn_says_what_to_give():
    sentence = re.escape(
        "pin learns on other turns which experts are used most, and the trace has no other turn; give "
        "`tracekit replay` a trace to learn on with --train, or counts of experts with --pin-from."
    )
    with pytest.raises(MissingDataError, match=sentence):
        replay(OTHER, "pin", cache_bytes=3)
    result = replay(OTHER, ["lru", "pin"], cache_bytes=3)
    assert [record["policy"] for record in result.records] == ["lru"]
    assert any(re.match(f"Left out: pin, because {sentence}", note) for note in result.notes)


@pytest.mark.slow
def test_what_is_pinned_stays():
    """Room for two of four experts: the pinned one is read once, whatever else is asked for."""
    one_layer = Run({0: 1}, 4, 1, tuple(
        (0, True, t, {0: [(e,)]}) for t, e in enumerate([0, 1, 2, 3, 0, 1, 2, 3, 0])
    )).trace()  # fmt: skip
    counts = ExpertCounts(np.array([[9, 1, 1, 1]]), (0,), "counts.json", "none")
    lru, pin = replay(one_layer, ["lru", "pin"], cache_bytes=2, pin_from=counts).records
    assert (lru["hits"], pin["hits"]) == (0, 2)


def with_counts(table, layers=(1, 3), **more):
    return ExpertCounts(np.array(table), layers, "counts.json", "none", **more)


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        (
            with_counts([[1, 2, 3], [1, 2, 3]]),
            "counts.json counts 3 experts a layer, and the trace has 4, so the counts are of another model; "
            "name the right one.",
        ),
        (
            with_counts([[1, 2, 3, 4]] * 3, (1, 2, 3)),
            "counts.json counts experts of layer 2, and the trace has none there, so the counts are of "
            "another model; name the right one.",
        ),
        (
            with_counts([[1, 2, 3, 4]], (1,)),
            "counts.json counts no expert of layer 3, where the trace has some, so the counts are of "
            "another model; name the right one.",
        ),
        (
            with_counts([[1, 2, 3, 4]] * 2, top_k=3),
            "counts.json says that a token uses 3 experts, and the trace 1, so the counts are of another "
            "model; name the right one.",
        ),
    ],
)
def test_counts_of_another_model_are_refused(counts, sentence):
    with pytest.raises(TraceError) as error:
        replay(THREE, "pin", cache_bytes=3, pin_from=counts)
    assert str(error.value) == sentence


def test_counts_that_nobody_goes_by_are_refused():
    with pytest.raises(UsageError) as error:
        replay(THREE, "lru", cache_bytes=3, pin_from=COUNTS)
    assert str(error.value) == "--pin-from is for policies that go by counts, such as pin; add one."


@pytest.mark.slow
def test_another_trace_is_counted():
    learned = replay(THREE, "pin", cache_bytes=3, train=OTHER).records
    assert replay(THREE, "pin", cache_bytes=3, pin_from=OTHER).records == learned
    with pytest.raises(UsageError, match="holds the routings that are replayed"):
        replay(THREE, "pin", cache_bytes=3, pin_from=THREE)


# ---- on the command line ------------------------------------------------------------------------


@pytest.mark.slow
def test_counts_come_from_a_file(tmp_path):
    trace = write_csv(tmp_path / "small.csv")
    (tmp_path / "usage").write_text("-1 2 8\n" + "".join(f"{n} 5 {9 + n}\n" for n in range(2)))
    args = ("replay", trace, "--policy", "pin", "--cache-mib", "10", "--format", "json")
    done = run(*args, "--pin-from", tmp_path / "usage")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["config"]["pin_from"] == str(tmp_path / "usage")
    from_python = replay(
        open_trace(trace), "pin", cache_mib=10, pin_from=str(tmp_path / "usage")
    ).records
    assert document["results"][0]["hits"] == from_python[0]["hits"]
    done = run(*args, "--pin-from", trace)
    assert done.code == 2
    assert "holds the routings that are replayed" in done.err
    (tmp_path / "words").write_text("no counts, no trace")
    done = run(*args, "--pin-from", tmp_path / "words")
    assert done.code == 3
    assert "is no trace that tracekit knows" in done.err
    done = run(*args, "--pin-from", tmp_path / "usage", "-o", tmp_path / "usage", "--force")
    assert done.code == 2
