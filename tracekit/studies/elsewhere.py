"""Run the units of a study on an executor: threads, processes, or the workers of a cluster.

In: courses, and anything with the ``submit`` of ``concurrent.futures``. Out: the same courses, each with
its part of the result. Workers open the traces; this process sends paths and gets rows.
"""

import queue
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import suppress
from traceback import walk_tb
from typing import Any

from tracekit.replaying.run import budgets_a_task
from tracekit.studies.course import Course
from tracekit.studies.dispatch import Dispatch, Step
from tracekit.studies.executors import Place, workers_of
from tracekit.studies.held import let_go
from tracekit.studies.sent import Answer, Call, packed
from tracekit.trace.errors import TracekitError


def run_on(
    executor: Any, courses: Sequence[Course], progress: Callable[[int, int], None] | None
) -> None:
    """Run `courses` on `executor`; `progress` is called with (done, total) units.

    Raises
    ------
    UsageError
        It is no executor.
    TracekitError
        A worker cannot open a trace, has another tracekit, or dies again and again; or the executor
        is gone. Also whatever a step raises.
    """
    Crew(executor, courses, progress).run()


class Crew:
    """The workers of an executor, and the steps that they are at."""

    def __init__(
        self,
        executor: Any,
        courses: Sequence[Course],
        progress: Callable[[int, int], None] | None,
    ):
        self._workers = workers_of(executor)
        self._courses = courses
        self._progress = progress
        todo = [course for course in courses if course.part is None]
        # Units of the same trace follow each other: a worker that has it open need not open it again.
        self._waiting = Dispatch(sorted(todo, key=lambda course: course.unit.of))
        self._names: dict[Course, tuple[str, bytes]] = {}
        self._plans: dict[Course, Future[Any]] = {}
        self._taken: dict[Future[Any], tuple[Step, Place]] = {}
        self._done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()

    def run(self) -> None:
        """Run all steps of all courses."""
        try:
            while self._waiting or self._taken:
                self._hand_out()
                future = self._done.get()
                step, _ = self._taken.pop(future)
                result = self._result(future, step)
                if step.name == "plan":
                    self._plans[step.course] = future
                self._follow(step, result)
        finally:
            for future in self._taken:
                with suppress(Exception):  # the scheduler may be gone
                    future.cancel()
            let_go(name for name, _ in self._names.values())

    def _hand_out(self) -> None:
        """Give workers that have room their next steps."""
        if not self._waiting:
            return
        try:
            threads = self._workers.threads()
        except Exception as error:
            raise _lost(error) or error from error
        while (found := self._waiting.next(threads, self._taken.values())) is not None:
            self._submit(*found)

    def _follow(self, step: Step, result: Any) -> None:
        """Take the result of a step; let those wait that follow from it."""
        course = step.course
        if step.name in ("part", "whole"):
            course.end(result)
            self._names.pop(course)
            self._plans.pop(course, None)
            if self._progress is not None:
                done = sum(each.part is not None for each in self._courses)
                self._progress(done, len(self._courses))
            return
        if step.cells is None:
            course.begin(result)
            for each in course.todo(budgets_a_task(1)):
                self._waiting.add(Step(course, "rows", (each.run, each.budgets), each))
        else:
            course.take(step.cells, result)
        records = course.records
        if records is not None:
            self._waiting.add(Step(course, "part", (records,)))

    def _submit(self, step: Step, place: Place) -> None:
        if step.course not in self._names:
            self._names[step.course] = uuid.uuid4().hex, packed(step.course.unit)
        call = bytes(Call(*self._names[step.course], step.name, *step.args))
        near = self._plans.get(step.course) if self._waiting.is_home(step.course, place) else None
        try:
            future = self._workers.submit(call, near)
        except Exception as error:
            raise _sentence(error, step) or error from error
        self._taken[future] = step, place
        future.add_done_callback(self._done.put)

    def _result(self, future: "Future[Any]", step: Step) -> Any:
        try:
            answer: Answer = future.result()
        except (Exception, CancelledError) as error:
            raise _sentence(error, step) or error from error
        if answer.error is not None:
            raise answer.error
        return answer.result


def _sentence(error: BaseException, step: Step) -> TracekitError | None:
    """Return what it means that a step ended with `error`; None if tracekit itself is at fault."""
    kind = type(error).__name__
    what = f"trace {step.course.unit.of}"
    if kind == "KilledWorker":
        return TracekitError(
            f"Workers died again and again while they worked on {what}; often they lack memory."
        )
    if isinstance(error, BrokenExecutor):
        return TracekitError(
            f"A worker process died while it worked on {what}, and its pool takes no more work."
        )
    if lost := _lost(error):
        return lost
    if isinstance(error, ImportError | AttributeError) and "tracekit" in str(error):
        return TracekitError(
            "A worker has no tracekit, or another version of it; install the same version on every "
            "worker."
        )
    if isinstance(error, RuntimeError) and "shutdown" in str(error):
        return TracekitError("The executor was shut down.")
    return None


def _lost(error: BaseException) -> TracekitError | None:
    """Return what it means if dask's client raised `error`; None if it did not."""
    lost = TracekitError("The connection to the workers was lost.")
    if isinstance(error, CancelledError) or type(error).__module__.startswith("distributed."):
        return lost
    if isinstance(error, OSError | RuntimeError) and error.__traceback__ is not None:
        # A connection that was not made in time, or is closed, has a plain type; dask itself raises it.
        *_, (innermost, _) = walk_tb(error.__traceback__)
        if innermost.f_globals["__name__"].split(".")[0] in ("asyncio", "distributed", "tornado"):
            return lost
    return None
