"""Which worker takes which step of a sweep: traces are opened as seldom as that leaves nobody idle."""

import random
from collections import defaultdict
from itertools import count
from types import SimpleNamespace

import pytest

from tracekit.studies.dispatch import Dispatch, Step


class Course:
    """A course of `n_steps` rows, or of none: it is one step then."""

    def __init__(self, trace, n_steps=6):
        self.unit = SimpleNamespace(of=trace, has_cells=n_steps > 0)
        self.n_steps = n_steps


class Crew:
    """Workers that take an hour for each step; `threads` says how many steps each does at once."""

    def __init__(self, courses, **threads):
        self.dispatch, self.threads = Dispatch(courses), threads
        self.queues = defaultdict(list)
        self.done = []  # (hour, place, trace, step)
        self.hour = 0

    def run(self, until=1000):
        while self.hour < until:
            taken = [(step, place) for place, steps in self.queues.items() for step in steps]
            while (found := self.dispatch.next(self.threads, taken)) is not None:
                taken.append(found)
                self.queues[found[1]].append(found[0])
            if not taken:
                assert not self.dispatch
                return self
            for place, n in self.threads.items():
                for step in self.queues[place][:n]:
                    self.done.append((self.hour, place, step.course.unit.of, step.name))
                    self.follow(step)
                del self.queues[place][:n]
            self.hour += 1
        return self

    def follow(self, step):
        course = step.course
        if step.name == "plan":
            for _ in range(course.n_steps):
                self.dispatch.add(Step(course, "rows"))
        elif step.name == "rows":
            course.n_steps -= 1
            if not course.n_steps:
                self.dispatch.add(Step(course, "part"))

    def places(self, trace):
        return {place for _, place, of, _ in self.done if of == trace}


@pytest.mark.parametrize("n_steps", [1, 6, 7])
@pytest.mark.parametrize("n_traces", [2, 4, 6])
def test_each_trace_stays_with_one_worker(n_traces, n_steps):
    crew = Crew([Course(f"t{i}", n_steps) for i in range(n_traces)], a=1, b=1).run()
    homes = [crew.places(f"t{i}") for i in range(n_traces)]
    assert sorted(map(sorted, homes)) == [["a"]] * (n_traces // 2) + [["b"]] * (n_traces // 2)
    assert crew.hour == n_traces // 2 * (n_steps + 2)  # nobody was idle


def test_a_single_trace_is_shared_by_all_workers():
    crew = Crew([Course("t", 20)], a=1, b=1, c=1).run()
    assert crew.places("t") == {"a", "b", "c"}
    assert crew.hour <= 1 + 7 + 1 + 1


def test_whoever_has_nothing_left_helps_with_the_last_trace():
    crew = Crew([Course("t0"), Course("t1"), Course("t2", 12)], a=1, b=1).run()
    assert len(crew.places("t2")) == 2
    assert crew.hour <= 8 + 8 + 1


def test_several_runs_over_a_trace_stay_with_its_worker():
    courses = [Course(trace) for trace in ("t0", "t0", "t1", "t1")]
    crew = Crew(courses, a=1, b=1).run()
    assert {len(crew.places(trace)) for trace in ("t0", "t1")} == {1}


def test_workers_of_several_threads_share_the_traces():
    crew = Crew([Course(f"t{i}", 8) for i in range(4)], a=4, b=4).run()
    assert {len(crew.places(f"t{i}")) for i in range(4)} == {1}
    assert {place for _, place, _, _ in crew.done} == {"a", "b"}


def test_what_a_lost_worker_had_is_taken_over():
    crew = Crew([Course("t0", 30), Course("t1", 30)], a=1, b=1).run(until=5)
    (lost,) = crew.places("t0")
    lost_steps = crew.queues.pop(lost)
    crew.threads.pop(lost)
    (left,) = crew.threads
    crew.queues[left] += lost_steps  # as dask does it
    crew.run()
    assert sum(name == "part" for *_, name in crew.done) == 2


def test_a_worker_that_comes_later_gets_work():
    crew = Crew([Course("t0", 30)], a=1).run(until=5)
    crew.threads["b"] = 1
    crew.run()
    assert crew.hour <= 5 + 15 + 2
    assert crew.places("t0") == {"a", "b"}


def test_runs_without_cells_are_one_step_each():
    crew = Crew([Course(f"t{i}", 0) for i in range(7)], a=1, b=2).run()
    assert [name for *_, name in crew.done] == ["whole"] * 7
    assert crew.hour == 3


def test_a_worker_that_is_free_takes_rows_of_others_but_never_a_last_step():
    course = Course("t0")
    plan = Step(course, "plan")
    dispatch = Dispatch([course])
    assert dispatch.next({"a": 1}, []) == (plan, "a")
    both, busy = {"a": 1, "b": 2}, [(plan, "a"), (plan, "a")]
    rows, part = Step(course, "rows"), Step(course, "part")
    dispatch.add(rows)
    assert dispatch.next(both, [*busy, (plan, "b")]) is None  # b opens a trace of its own
    assert dispatch.next(both, busy) == (rows, "b")
    assert not dispatch.is_home(course, "b")
    dispatch.add(part)
    assert dispatch.next(both, busy) is None
    assert dispatch.next(both, []) == (part, "a")
    assert not dispatch


def test_a_worker_begins_one_trace_at_a_time_and_a_pool_several():
    for place, n_begun in (("a", 1), (None, 4)):
        dispatch = Dispatch([Course(f"t{i}") for i in range(6)])
        taken = []
        while (found := dispatch.next({place: 4}, taken)) is not None:
            taken.append(found)
        assert len(taken) == n_begun


def test_a_last_step_goes_before_rows_of_other_traces():
    courses = [Course("t0"), Course("t1")]
    dispatch = Dispatch(courses)
    for _ in courses:
        dispatch.next({"a": 1}, [])
    rows, part = Step(courses[1], "rows"), Step(courses[0], "part")
    dispatch.add(rows)
    dispatch.add(part)
    assert [dispatch.next({"a": 1}, []) for _ in courses] == [(part, "a"), (rows, "a")]


def test_a_worker_goes_on_with_the_trace_that_it_has():
    courses = [Course(trace) for trace in ("t0", "t1", "t2", "t1", "t0")]
    dispatch = Dispatch(courses)
    begun = [dispatch.next({place: 1}, []) for place in ("a", "b", "a", "b", "a")]
    assert [(step.course.unit.of, place) for step, place in begun] == [
        ("t0", "a"), ("t1", "b"), ("t0", "a"), ("t1", "b"), ("t2", "a"),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(30))
def test_workers_come_and_go_and_each_step_is_taken_once(seed):
    rng = random.Random(seed)
    courses = [
        Course(f"t{rng.randrange(4)}", rng.choice([0, 1, 5, 12]))
        for _ in range(rng.randrange(1, 9))
    ]
    n_steps = sum(course.n_steps + 2 if course.n_steps else 1 for course in courses)
    crew = Crew(courses, w0=rng.choice([1, 2, 4]))
    names = (f"w{number}" for number in count(1))
    while crew.dispatch or any(crew.queues.values()):
        if rng.random() < 0.2:
            crew.threads[next(names)] = rng.choice([1, 2, 4])
        if rng.random() < 0.2 and len(crew.threads) > 1:
            lost = rng.choice(list(crew.threads))
            crew.threads.pop(lost)
            crew.queues[rng.choice(list(crew.threads))] += crew.queues.pop(lost, [])
        before = len(crew.done)
        crew.run(until=crew.hour + 1)
        assert len(crew.done) > before  # no hour without work
    assert len(crew.done) == n_steps
