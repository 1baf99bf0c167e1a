"""Replays of several traces on an executor: what `tracekit replay` says of each, made by workers.

In: traces, and a run as a study has it. Out: of each trace the table, the JSON object and the rows that a
replay in this process gives.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tracekit.replaying.prepare import Prepared
from tracekit.replaying.result import ReplayResult
from tracekit.replaying.rows import Row
from tracekit.studies.course import Course
from tracekit.studies.elsewhere import run_on
from tracekit.studies.files import TraceFile
from tracekit.studies.spec import Run
from tracekit.studies.units import Part, Unit, own_classes
from tracekit.trace import Trace


@dataclass(frozen=True, eq=False)
class Forms(Part):
    """What a replay of one trace says, in each of its forms.

    Attributes
    ----------
    text : str
        As `ReplayResult.to_text`.
    document : dict
        As `ReplayResult.to_json`.
    records : list of dict
        As `ReplayResult.records`.
    """

    text: str
    document: dict[str, Any]
    records: list[dict[str, Any]]

    @classmethod
    def of(cls, result: ReplayResult) -> "Forms":
        """Return the forms of a result."""
        name = result.trace.name
        return cls(
            frame=result.frame,
            notes=result.notes,
            warnings={name: result.trace.warnings},
            text=result.to_text(),
            document=result.to_json(),
            records=result.records,
        )


@dataclass(frozen=True, eq=False)
class Replay(Unit):
    """The replay of one trace."""

    def prepared(self, trace: Trace, warm: Trace | None) -> Prepared:
        """Return the replay before anything of it has run; sizes of experts may be unknown."""
        return self._prepared(trace, warm, ())

    def part(
        self, work: Prepared, by_run: list[list[Row]], trace: Trace, warm: Trace | None
    ) -> Forms:
        """Return the forms of the result, from the rows of each of ``work.policies``."""
        return Forms.of(work.result(by_run))


def replay_on(
    executor: Any,
    traces: Iterable[tuple[Trace, Path]],
    run: Run,
    *,
    warm: tuple[Trace, Path] | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Forms]:
    """Replay traces on `executor`, with the figures of a replay in this process.

    Parameters
    ----------
    executor : dask client or executor
        As for `tracekit.sweep`. Workers open the traces themselves, under the paths that they have here.
    traces : iterable of (Trace, Path)
        Opened, and where each was opened.
    run : Run
        Policies, budgets and parameters.
    warm : (Trace, Path), optional
        The trace that is replayed first.
    seed : int
    progress : callable, optional
        Called with (done, total) traces.

    Returns
    -------
    list of Forms
        One for each trace, in their order.

    Raises
    ------
    UsageError, TracekitError
        As for `tracekit.replay` and `tracekit.sweep`.
    """
    own = own_classes(run)
    before = None if warm is None else TraceFile.of(*warm)
    courses = [
        Course(
            Replay(
                trace.name,
                TraceFile.of(trace, path),
                before,
                run,
                run.policies,
                run.params,
                seed,
                own,
            ),
            None,
        )
        for trace, path in traces
    ]
    run_on(executor, courses, progress)
    return [course.part for course in courses if isinstance(course.part, Forms)]
