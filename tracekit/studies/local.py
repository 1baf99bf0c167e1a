"""Run the units of a study in this process, one after the other, each on several threads.

In: courses. Out: the same, each with its part of the result.
"""

from collections.abc import Callable, Sequence

from tracekit.replaying.run import budgets_a_task
from tracekit.replaying.threads import on_threads, threads_of
from tracekit.studies.course import Course
from tracekit.studies.held import Held


def run_here(
    courses: Sequence[Course], jobs: int | None, progress: Callable[[int, int], None] | None
) -> None:
    """Run `courses`; `progress` is called with (done, total) units."""
    for done, course in enumerate(courses, 1):
        if course.part is None:
            _run(course, Held(course.unit), jobs)
        if progress is not None:
            progress(done, len(courses))


def _run(course: Course, held: Held, jobs: int | None) -> None:
    if not course.unit.has_cells:
        course.end(held.whole(jobs))
        return
    threads = threads_of(jobs)
    course.begin(held.plan())
    cells = list(course.todo(budgets_a_task(threads)))
    for index, rows in on_threads(lambda c: held.rows(c.run, c.budgets), cells, threads):
        course.take(cells[index], rows)
    records = course.records
    assert records is not None  # no cell is left
    course.end(held.part(records))
