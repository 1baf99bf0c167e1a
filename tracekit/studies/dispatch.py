"""Which step a worker takes next: one of a trace that it has open, as long as there is one.

In: courses, and how many threads each worker has. Out: steps, each with the worker that takes it. To open
and prepare a trace costs seconds and its memory, so each course has one worker at first; others help where
no trace is left to begin. Nothing here runs a step.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tracekit.studies.course import Cells, Course
from tracekit.studies.executors import Place

# With so many steps for each thread none is idle; with more, workers would open further traces too soon.
_STEPS_A_THREAD = 2


class Step(NamedTuple):
    """A step of a course: which one, what it is given, and the cells whose rows it returns."""

    course: Course
    name: str
    args: tuple[Any, ...] = ()
    cells: Cells | None = None


class Dispatch:
    """The steps that wait, and where those of each course are taken.

    Parameters
    ----------
    courses : iterable of Course
        They are begun in this order, but a worker goes on with the trace of its last one.
    """

    def __init__(self, courses: Iterable[Course]):
        self._waiting = deque(courses)
        self._trace: dict[Place, str] = {}
        self._ready: dict[Course, deque[Step]] = {}  # of each, one step at least
        self._home: dict[Course, Place] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting or self._ready)

    def is_home(self, course: Course, place: Place) -> bool:
        """Say whether `place` has begun the course, and has its trace open."""
        return self._home[course] == place

    def add(self, step: Step) -> None:
        """Let `step` wait, behind those of its course."""
        self._ready.setdefault(step.course, deque()).append(step)

    def next(
        self, threads: Mapping[Place, int], taken: Iterable[tuple[Step, Place]]
    ) -> tuple[Step, Place] | None:
        """Return the next step and who takes it; None as long as all have enough to do.

        Parameters
        ----------
        threads : mapping of Place to int
            Of each worker that there is now.
        taken : iterable of (Step, Place)
            What the workers are at.
        """
        steps, plans = Counter[Place](), Counter[Place]()
        for step, place in taken:
            steps[place] += 1
            plans[place] += step.name == "plan"
        free = sorted(
            (place for place in threads if steps[place] < _STEPS_A_THREAD * threads[place]),
            key=lambda place: steps[place] / threads[place],
        )
        for place in free:
            found = self._at_home(place)
            # The threads of a worker share a trace; a pool may have a process for each.
            most_plans = threads[place] if place is None else 1
            if found is None and plans[place] < most_plans:
                found = self._left_alone(place, threads) or self._begun(place)
            if found is not None:
                return found, place
        for place in free:
            if not plans[place] and steps[place] < threads[place]:
                found = self._of_others()
                if found is not None:
                    return found, place
        return None

    def _at_home(self, place: Place) -> Step | None:
        """Take a step of a course that `place` has; a last one first, while the trace is open."""
        own = (c for c in self._ready if self._home[c] == place)
        return self._first(sorted(own, key=lambda c: self._ready[c][0].name != "part"))

    def _left_alone(self, place: Place, threads: Mapping[Place, int]) -> Step | None:
        """Take a step of a course whose worker is gone; `place` has the course from now on."""
        step = self._first(c for c in self._ready if self._home[c] not in threads)
        if step is not None:
            self._home[step.course] = place
        return step

    def _begun(self, place: Place) -> Step | None:
        """Begin a course of the trace that `place` has, or of one that no other worker has."""
        if not self._waiting:
            return None
        own, others = self._trace.get(place), set(self._trace.values())
        course = min(self._waiting, key=lambda c: (c.unit.of != own, c.unit.of in others))
        self._waiting.remove(course)
        self._home[course], self._trace[place] = place, course.unit.of
        return Step(course, "plan") if course.unit.has_cells else Step(course, "whole", (1,))

    def _of_others(self) -> Step | None:
        """Take rows of the course of which most wait; a last step is not worth opening a trace for."""
        of_rows = (c for c in self._ready if self._ready[c][0].name == "rows")
        return self._first(sorted(of_rows, key=lambda c: len(self._ready[c]), reverse=True))

    def _first(self, courses: Iterable[Course]) -> Step | None:
        course = next(iter(courses), None)
        if course is None:
            return None
        steps = self._ready[course]
        step = steps.popleft()
        if not steps:
            del self._ready[course]
        return step
