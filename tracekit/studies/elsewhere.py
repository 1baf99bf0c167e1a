"""Run the units of a study on an executor: threads, processes, or the workers of a cluster.

In: courses, and anything with the ``submit`` of ``concurrent.futures``. Out: the same courses, each with
its part of the result. Workers open the traces; this process sends paths and gets rows.
"""

import os
import queue
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import suppress
from functools import partial
from pickle import loads
from traceback import walk_tb
from typing import Any, cast

from tracekit.replaying.run import budgets_a_task
from tracekit.studies.course import Cells, Course
from tracekit.studies.held import let_go
from tracekit.studies.sent import Answer, Call, packed
from tracekit.trace.errors import TracekitError, UsageError

# With so many steps for each worker none is idle; with more, workers would open further traces too soon.
_STEPS_A_WORKER = 2


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
        self._size = _n_workers(executor)
        self._submit_call = _submit_of(executor)
        self._courses = courses
        self._progress = progress
        todo = [course for course in courses if course.part is None]
        # Units of the same trace follow each other: a worker that has it open need not open it again.
        self._waiting = deque(sorted(todo, key=lambda course: course.unit.of))
        self._names: dict[Course, tuple[str, bytes]] = {}
        self._steps: dict[Future[Any], tuple[Course, Cells | None, str]] = {}
        self._done: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()

    def run(self) -> None:
        """Run all steps of all courses."""
        try:
            while self._waiting or self._steps:
                while self._waiting and self._has_room():
                    self._begin(self._waiting.popleft())
                future = self._done.get()
                course, cells, step = self._steps.pop(future)
                self._follow(course, cells, step, self._result(future, course, cells))
        finally:
            for future in self._steps:
                with suppress(Exception):  # the scheduler may be gone
                    future.cancel()
            let_go(name for name, _ in self._names.values())

    def _has_room(self) -> bool:
        try:
            size = self._size()
        except Exception as error:
            raise _lost(error) or error from error
        n_plans = sum(step == "plan" for _, _, step in self._steps.values())
        return n_plans < size and len(self._steps) < _STEPS_A_WORKER * size

    def _begin(self, course: Course) -> None:
        self._names[course] = uuid.uuid4().hex, packed(course.unit)
        if course.unit.has_cells:
            self._submit(course, "plan")
        else:
            self._submit(course, "whole", 1)

    def _follow(self, course: Course, cells: Cells | None, step: str, result: Any) -> None:
        """Take the result of a step, and submit those that follow from it."""
        if step in ("part", "whole"):
            course.end(result)
            self._names.pop(course)
            if self._progress is not None:
                done = sum(each.part is not None for each in self._courses)
                self._progress(done, len(self._courses))
            return
        if cells is None:
            course.begin(result)
            for each in course.todo(budgets_a_task(1)):
                self._submit(course, "rows", each.run, each.budgets, cells=each)
        else:
            course.take(cells, result)
        records = course.records
        if records is not None:
            self._submit(course, "part", records)

    def _submit(self, course: Course, step: str, *args: Any, cells: Cells | None = None) -> None:
        call = bytes(Call(*self._names[course], step, *args))
        try:
            future = self._submit_call(loads, call)
        except Exception as error:
            raise _sentence(error, course, cells) or error from error
        self._steps[future] = course, cells, step
        future.add_done_callback(self._done.put)

    def _result(self, future: "Future[Any]", course: Course, cells: Cells | None) -> Any:
        try:
            answer: Answer = future.result()
        except (Exception, CancelledError) as error:
            raise _sentence(error, course, cells) or error from error
        if answer.error is not None:
            raise answer.error
        return answer.result


def _sentence(error: BaseException, course: Course, cells: Cells | None) -> TracekitError | None:
    """Return what it means that a step ended with `error`; None if tracekit itself is at fault."""
    kind = type(error).__name__
    what = f"trace {course.unit.of}"
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


def _n_workers(executor: Any) -> Callable[[], int]:
    """Return a function that says how many steps run at once."""
    client = _dask_client(executor)
    if client is not None:  # its workers come and go
        return lambda: max(1, sum(client.nthreads().values()))
    size: int = getattr(executor, "_max_workers", None) or os.cpu_count() or 1
    return lambda: size


def _submit_of(executor: Any) -> Callable[..., "Future[Any]"]:
    """Return the ``submit`` of an executor.

    That of dask itself, whose executor never says that a future was lost with its worker.
    """
    client = _dask_client(executor)
    if client is not None:
        return partial(client.submit, pure=False)
    if not callable(getattr(executor, "submit", None)):
        raise UsageError(
            "executor takes a dask client, or what has the submit() of concurrent.futures, not "
            f"{type(executor).__name__}."
        )
    return cast("Callable[..., Future[Any]]", executor.submit)


def _dask_client(executor: Any) -> Any:
    """Return the dask client that `executor` is, or is of; None if it is another executor."""
    client = getattr(executor, "_client", executor)
    return client if hasattr(client, "nthreads") else None
