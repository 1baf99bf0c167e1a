"""`sweep`: run a study over its traces and decide its claims.

In: a study. Out: the table of its result, and for each claim whether it holds. Nothing is written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracekit.figures import csv_cell, printable
from tracekit.studies.claims import Verdict, decide
from tracekit.studies.course import Course
from tracekit.studies.elsewhere import run_on
from tracekit.studies.files import TraceFile
from tracekit.studies.find import open_traces, trace_files
from tracekit.studies.finished import FinishedWork
from tracekit.studies.local import run_here
from tracekit.studies.spec import Study, read_study
from tracekit.studies.transfers import measured_runs, transferred
from tracekit.studies.units import units_of
from tracekit.table import Column, Table, as_html
from tracekit.trace import Trace, UsageError

# Figures of a predictor may differ in the last digits from one processor to another.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


@dataclass(frozen=True, eq=False)
class StudyResult:
    """What a study found.

    Attributes
    ----------
    study : Study
    frame : DataFrame
        The rows of `tracekit.replay` and `tracekit.predict`. Their first columns say which row it
        is: ``trace`` (its name in the study), policy, predictor, params, ``seed`` (of a policy that
        draws random numbers). Columns without a figure are left out, and ``bypass``, ``skip``
        and ``warm`` where no run has them.
    verdicts : list of Verdict
        One for each claim, in their order.
    notes : list of str
        The notes of the runs, each sentence once.
    warnings : list of str
        What is wrong with the traces, each sentence once.
    """

    study: Study
    frame: pd.DataFrame
    verdicts: list[Verdict]
    notes: list[str]
    warnings: list[str]

    @property
    def all_claims_hold(self) -> bool:
        """Whether every claim holds."""
        return all(verdict.holds for verdict in self.verdicts)

    @cached_property
    def csv(self) -> str:
        """The result table as text."""
        frame = self.frame.rename(columns=csv_cell)
        texts = frame.select_dtypes(exclude=["number", "bool"]).columns
        frame = frame.assign(**{name: frame[name].map(_cell) for name in texts})
        return str(frame.to_csv(index=False, float_format="%.8g", lineterminator="\n"))

    def differences(self, committed: Path) -> list[str]:
        """Return how the result differs from that of the file `committed`, a phrase a column.

        Raises
        ------
        OSError
            The file cannot be read.
        """
        before, now = (_as_text(file) for file in (committed, StringIO(self.csv)))
        if list(before) != list(now):
            return [f"{committed} has other columns"]
        if len(before) != len(now):
            return [f"{committed} has {len(before)} rows, the result {len(now)}"]
        different = {name: ~_is_same(before[name], now[name]) for name in now}
        return [
            f"{name} differs in {rows.sum()} of {len(now)} rows"
            for name, rows in different.items()
            if rows.any()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        rows = self.frame.astype(object).where(self.frame.notna(), None).to_dict("records")
        return {
            "study": str(self.study.path),
            "title": self.study.title,
            "warnings": self.warnings,
            "notes": self.notes,
            "claims": [
                {
                    "says": verdict.claim.says,
                    "holds": verdict.holds,
                    "figures": verdict.figures.tolist(),
                }
                for verdict in self.verdicts
            ],
            "results": rows,
        }

    def _repr_html_(self) -> str:
        held = sum(verdict.holds for verdict in self.verdicts)
        columns: list[Column[Verdict]] = [
            Column("claim", lambda verdict: verdict.claim.says, left=True),
            Column("figures", lambda verdict: verdict.summary, left=True),
            Column("holds", lambda verdict: "yes" if verdict.holds else "no"),
        ]
        table = Table(columns, self.verdicts, title=self.study.title)
        held_text = f"{held} of {len(self.verdicts)} claims hold."
        return as_html([table, held_text, *self.warnings, *self.notes])


def sweep(
    study: str | Path | Study,
    traces: str | Path | None = None,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    executor: Any = None,
    finished: str | Path | FinishedWork | None = None,
) -> StudyResult:
    """Run a study and decide its claims; no result table is written.

    Parameters
    ----------
    study : str, Path or Study
        A TOML file, or what `read_study` returned for it.
    traces : str or Path, optional
        The folder of fetched traces; the environment's TRACEKIT_TRACES by default.
    jobs : int, optional
        Threads, where there is no `executor`.
    progress : callable, optional
        Called with (done, total) as runs get done, each over one trace with one seed.
    executor : dask client or executor, optional
        Where to run: a ``dask.distributed.Client``, or anything with the ``submit`` of
        ``concurrent.futures``. Workers open the traces themselves, under the paths that they have
        here. The figures are those of a run without, to the last bit.
    finished : str, Path or FinishedWork, optional
        A file to which finished work is added as it gets done. What it holds of the same trace,
        parameters and version of tracekit is not run again.

    Raises
    ------
    UsageError
        The study is not valid, a claim is about nothing, `executor` is none, or `finished` is
        another kind of file.
    TracekitError
        A trace that has to be fetched is not there, or lacks the data that a run needs. Or a
        worker cannot open a trace, has another version of tracekit, or dies again and again.
    """
    if not isinstance(study, Study):
        study = read_study(study)
    opened: Mapping[str, Trace | TraceFile] = (
        open_traces(study, traces) if executor is None else trace_files(study, traces)
    )
    measured = measured_runs(study, traces)
    if isinstance(finished, str | Path):
        finished = FinishedWork(finished)
    courses = [
        Course(unit, finished)
        for run in study.runs
        for name in run.traces or opened
        for unit in units_of(name, opened[name], opened.get(run.warm), run)
    ]
    if not courses and not study.transfers:
        raise UsageError(f"{study.path} runs nothing; give it a trace, a [[run]] and a seed.")
    try:
        if executor is None:
            run_here(courses, jobs, progress)
        else:
            run_on(executor, courses, progress)
    finally:
        if finished is not None:
            finished.close()
    parts = [course.part for course in courses if course.part is not None]
    frame = _combined(
        [
            *(part.frame for part in parts),
            *(
                transferred(each, measured[each.measured]).assign(trace=each.measured)
                for each in study.transfers
            ),
        ]
    )
    verdicts = [decide(claim, frame) for claim in study.claims]
    warnings = {name: trace.warnings for name, trace in opened.items()}
    for part in parts:
        warnings |= part.warnings
    return StudyResult(
        study,
        frame,
        verdicts,
        list(dict.fromkeys(sentence for part in parts for sentence in part.notes)),
        list(dict.fromkeys(sentence for of_trace in warnings.values() for sentence in of_trace)),
    )


def _combined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    frame = pd.concat([part.astype(object) for part in frames], ignore_index=True).infer_objects()
    frame = frame.dropna(axis="columns", how="all")
    unused = [
        name for name in ("bypass", "skip", "warm") if name in frame and not _is_used(frame[name])
    ]
    frame = frame.drop(columns=unused)
    leading = ("trace", "transfer", "policy", "predictor", "params", "seed")
    first = [name for name in leading if name in frame]
    return frame[[*first, *(name for name in frame if name not in first)]]


def _is_used(values: pd.Series) -> bool:
    return bool(values.map(lambda value: pd.notna(value) and bool(value)).any())


def _cell(value: Any) -> Any:
    return csv_cell(printable(value)) if isinstance(value, str) else value


def _as_text(file: Path | StringIO) -> pd.DataFrame:
    return pd.read_csv(file, keep_default_na=False, dtype=str)


def _is_same(before: pd.Series, now: pd.Series) -> np.ndarray:
    """Return which texts are the same, or numbers as good as equal, bool [rows]."""
    numbers = [pd.to_numeric(values, errors="coerce").to_numpy() for values in (before, now)]
    is_close = np.isclose(numbers[0], numbers[1], rtol=_RELATIVE, atol=_ABSOLUTE)
    return np.asarray(is_close | (before == now).to_numpy())
