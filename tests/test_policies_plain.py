"""Policies of a user's own, in plain Python."""

import doctest
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from cache_runs import EXAMPLES, Run, budgets_of, runs
from hypothesis import given, settings

from tracekit import analysis
from tracekit.policies import LRU, PlainPolicy, Policy, load_policy, plain
from tracekit.policies.base import Cell
from tracekit.replaying import build_batches, replay
from tracekit.report import build_report
from tracekit.trace import UsageError

EXAMPLES_FOLDER = str(Path(__file__).parent / "examples")


class OldestTouch(PlainPolicy):
    name = "oldest-touch"

    def victim(self, evictable):
        return next(iter(evictable))


class Stubborn(PlainPolicy):
    name = "stubborn"

    def victim(self, evictable):
        return -1


@settings(max_examples=EXAMPLES, deadline=None)
@given(run=runs())
def test_the_first_of_what_may_go_is_the_least_recently_used(run):
    batches = build_batches(run.trace())
    budgets = np.array(budgets_of(run))
    own = OldestTouch().simulate(batches, budgets, per_lookup=True)
    for cell, lru in zip(own, LRU().simulate(batches, budgets, per_lookup=True), strict=True):
        np.testing.assert_array_equal(cell.hit, lru.hit)
        np.testing.assert_array_equal(cell.hits, lru.hits)
        np.testing.assert_array_equal(cell.resident_bytes, lru.resident_bytes)


def test_the_example_of_the_docstring_runs():
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(plain.PlainPolicy, "PlainPolicy")
    scope = {}
    result = doctest.DocTestRunner().run(example, clear_globs=False)
    scope.update(example.globs)
    assert (result.attempted, result.failed) == (2, 0)
    cells = scope["FirstIn"]().simulate(build_batches(TWO_LAYERS.trace()), np.array([3]))
    assert cells[0].hits.tolist() == [0, 0, 1, 0, 0, 1]


TWO_LAYERS = Run(
    sizes={0: 1, 1: 1},
    n_expert=2,
    top_k=1,
    passes=tuple((0, True, t, {0: [(t // 2,)], 1: [(t % 2,)]}) for t in range(3)),
)


def test_a_victim_that_may_not_go_is_refused():
    with pytest.raises(UsageError, match="Policy 'stubborn' chose to evict -1"):
        Stubborn().simulate(build_batches(TWO_LAYERS.trace()), np.array([1]))


def test_a_victim_that_cannot_be_a_key_is_refused():
    class Lists(Stubborn):
        name = "lists"

        def victim(self, evictable):
            return list(evictable)

    with pytest.raises(UsageError, match=r"Policy 'lists' chose to evict \[0\]"):
        Lists().simulate(build_batches(TWO_LAYERS.trace()), np.array([1]))


def test_a_class_of_ones_own_is_replayed_by_module_and_class(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES_FOLDER)
    monkeypatch.delitem(sys.modules, "own_ring", raising=False)
    result = replay(TWO_LAYERS.trace(), ["own_ring:OwnRing", "lru"], cache_bytes=2)
    assert [r["policy"] for r in result.records] == ["own-ring", "lru"]
    assert load_policy("own_ring:OwnRing").summary.startswith("least recent token first")


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (":Ring", "cannot be loaded"),
        (".own_ring:OwnRing", "cannot be loaded"),
        ("no_such_module:Policy", "cannot be loaded: No module named 'no_such_module'"),
        ("own_ring:Nothing", "own_ring must hold a class 'Nothing' derived from"),
        ("doctest:DocTest", "is not a policy"),
        ("./ring_policy.py:Ring", "in the file's folder, write ring_policy:Ring"),
        ("wrong_policies:Nameless", "'wrong_policies:Nameless' has no name to print"),
        ("wrong_policies:Namesake", "is called 'lru', as one that comes with tracekit"),
        ("no_python:Policy", r"cannot be loaded: .*no_python\.py, line 1"),
    ],
)
def test_a_class_that_is_none_is_refused(monkeypatch, tmp_path, spec, sentence):
    monkeypatch.syspath_prepend(EXAMPLES_FOLDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "no_python.py").write_text("class Policy(:\n")
    (tmp_path / "wrong_policies.py").write_text(
        "from tracekit.policies import LRU\n"
        "class Nameless(LRU):\n    name = None\n"
        "class Namesake(LRU): pass\n"
    )
    monkeypatch.delitem(sys.modules, "wrong_policies", raising=False)
    with pytest.raises(UsageError, match=sentence):
        load_policy(spec)


class Answers(Policy):
    """Returns what it is told to."""

    name = "answers"

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def simulate(self, batches, budgets, per_lookup=False):
        return self.answer


ONES, SIZES = np.ones(6, np.int32), np.ones(6, np.int64)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "is wrong: its simulate() returned None instead of a list of 1 cells"),
        ([], "returned 0 cells instead of a list of 1 cells, one for each budget."),
        ([7], "returned 7 instead of a Cell."),
        ([Cell(1, ONES, SIZES)], "returned a cell of 1 bytes for a budget of 2."),
        (
            [Cell(2, ONES[:3], SIZES)],
            "returned hits of shape (3,) instead of one number for each of 6 batches",
        ),
        (
            [Cell(2, ONES, SIZES, hit=ONES[:3] > 0)],
            "returned hit of shape (3,) instead of one number for each of 6 lookups.",
        ),
        ([Cell(2, [1] * 6, SIZES)], "returned hits that are not an array of numbers."),
        ([Cell(2, ONES, None)], "returned resident_bytes that are not an array of numbers."),
        ([Cell(2, np.nan * ONES, SIZES)], "returned nan hits of 1 lookups for batch 0."),
        ([Cell(2, 2 * ONES, SIZES)], "returned 2 hits of 1 lookups for batch 0."),
        ([Cell(2, -ONES, SIZES)], "returned -1 hits of 1 lookups for batch 0."),
        ([Cell(2, ONES, -SIZES)], "returned -1 bytes resident for batch 0."),
        ([Cell(2, ONES, SIZES, counters={"hits": 1})], "has a counter 'hits', as every result"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(answer, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)):
        replay(TWO_LAYERS.trace(), Answers(answer), cache_bytes=2)


def test_an_answer_that_cannot_be_is_not_drawn():
    trace, answer = TWO_LAYERS.trace(), [Cell(2, 2 * ONES, SIZES)]
    for draw in (
        lambda: analysis.residency_timeline(trace, Answers(answer), 2),
        lambda: analysis.hit_rate_gains(trace, [Answers(answer)], 0.5),
    ):
        with pytest.raises(UsageError, match="returned 2 hits of 1 lookups for batch 0"):
            draw()


def test_a_report_needs_to_know_which_lookups_hit(monkeypatch, tmp_path):
    (tmp_path / "silent.py").write_text(
        "from tracekit.policies import LRU\n"
        "class Silent(LRU):\n"
        "    name = 'silent'\n"
        "    def simulate(self, batches, budgets, per_lookup=False):\n"
        "        return super().simulate(batches, budgets)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    sentence = "Policy 'silent' does not say which lookups hit, as the report shows them"
    with pytest.raises(UsageError, match=sentence):
        build_report(TWO_LAYERS.trace(), policies=["silent:Silent"], cache_bytes=[2])


def test_a_counter_may_be_one_of_numpy_and_unknown():
    counters = {"seen": np.int64(3), "share": np.float64("nan")}
    cell = Cell(2, ONES, SIZES, counters=counters)
    document = replay(TWO_LAYERS.trace(), Answers([cell]), cache_bytes=2).to_json()
    (result,) = json.loads(json.dumps(document, allow_nan=False))["results"]
    assert (result["seen"], result["share"]) == (3, None)
