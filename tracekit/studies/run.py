"""`sweep`: run a study over its traces and decide its claims."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracekit.figures import settings
from tracekit.policies import POLICIES
from tracekit.replaying import replay
from tracekit.scoring import predict
from tracekit.studies.claims import Verdict, decide
from tracekit.studies.find import open_traces
from tracekit.studies.spec import Run, Study, read_study
from tracekit.trace import Trace, UsageError

# How long a fit took is not a result.
_NOT_REPRODUCIBLE = ("fit_seconds",)
# Figures of a predictor may differ in the last digits from one processor to another.
_RELATIVE, _ABSOLUTE = 1e-4, 1e-6


@dataclass(frozen=True, eq=False)
class StudyResult:
    """What a study found.

    Attributes
    ----------
    study : Study
    frame : DataFrame
        The rows of `tracekit.replay` and `tracekit.predict`, with the columns ``trace`` (its name
        in the study) and ``seed`` (of a policy that draws random numbers) before them; columns
        without a figure are left out.
    verdicts : list of Verdict
        One for each claim, in their order.
    notes : list of str
        What the runs had to say, each sentence once.
    """

    study: Study
    frame: pd.DataFrame
    verdicts: list[Verdict]
    notes: list[str]

    @property
    def holds(self) -> bool:
        """Every claim holds."""
        return all(verdict.holds for verdict in self.verdicts)

    @cached_property
    def csv(self) -> str:
        """The result table as text."""
        return self.frame.to_csv(index=False, float_format="%.8g", lineterminator="\n")

    def differences(self, committed: Path) -> list[str]:
        """Say in which columns the result is not that of the file `committed`.

        Raises
        ------
        OSError
            The file cannot be read.
        """
        before, now = (_as_text(file) for file in (committed, StringIO(self.csv)))
        if list(before) != list(now):
            return [f"the columns of {committed} are others"]
        if len(before) != len(now):
            return [f"{committed} has {len(before)} rows, the result {len(now)}"]
        different = {name: ~_same(before[name], now[name]) for name in now}
        return [
            f"{name} differs in {rows.sum()} of {len(now)} rows"
            for name, rows in different.items()
            if rows.any()
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what the study found as a JSON object."""
        rows = self.frame.astype(object).where(self.frame.notna(), None).to_dict("records")
        return {
            "study": str(self.study.path),
            "title": self.study.title,
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


def sweep(
    study: str | Path | Study,
    traces: str | Path | None = None,
    *,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> StudyResult:
    """Run a study and decide its claims; nothing is written.

    Parameters
    ----------
    study : str, Path or Study
        A TOML file, or what `read_study` made of it.
    traces : str or Path, optional
        The folder of traces that do not come with tracekit; the environment's TRACEKIT_TRACES by
        default.
    jobs : int, optional
        Threads.
    progress : callable, optional
        Called with (done, total) as runs get done.

    Raises
    ------
    UsageError
        The study is not as a study should be, or a claim is about nothing.
    TracekitError
        A trace that has to be fetched is not there, or does not carry what a run needs.
    """
    if not isinstance(study, Study):
        study = read_study(study)
    opened = open_traces(study, traces)
    work = [(name, run) for run in study.runs for name in run.traces or opened]
    frames, notes = [], []
    for done, (name, run) in enumerate(work, 1):
        for frame, said in _run(opened[name], run, jobs):
            frames.append(frame.assign(trace=name))
            notes += [f"{name}: {sentence}" for sentence in said]
        if progress is not None:
            progress(done, len(work))
    if not frames:
        raise UsageError(f"{study.path} runs nothing; give it a trace, a [[run]] and a seed.")
    frame = _joined(frames)
    verdicts = [decide(claim, frame) for claim in study.claims]
    return StudyResult(study, frame, verdicts, list(dict.fromkeys(notes)))


def _run(trace: Trace, run: Run, jobs: int | None) -> list[tuple[pd.DataFrame, list[str]]]:
    if run.predictors:
        result = predict(
            trace, run.predictors, run.horizon, run.named or None, per_layer=False, jobs=jobs
        )
        return [(result.frame.drop(columns=list(_NOT_REPRODUCIBLE), errors="ignore"), result.notes)]
    budgets = _budgets(trace, run)
    stochastic = {name for name in run.policies if POLICIES.find(name).stochastic}
    results = []
    for place, seed in enumerate(run.seeds):
        policies = [name for name in run.policies if place == 0 or name in stochastic]
        if not policies:
            continue
        result = replay(trace, policies, **budgets, params=run.params, seed=seed, jobs=jobs)
        frame = result.frame.drop(columns="label")
        frame["params"] = frame["params"].map(settings)
        cycles = (frame["cache_bytes"] / trace.token_cycle_bytes).round(6)
        frame.insert(frame.columns.get_loc("cache_mib") + 1, "cache_cycles", cycles)
        seeds = np.where(frame["policy"].isin(stochastic), seed, None)
        results.append((frame.assign(seed=seeds), result.notes))
    return results


def _budgets(trace: Trace, run: Run) -> dict[str, list[float]]:
    if run.cache_cycles:
        cycle = trace.token_cycle_bytes
        return {"cache_bytes": [round(cycles * cycle) for cycles in run.cache_cycles]}
    given = {name: getattr(run, name) for name in ("cache_mib", "cache_bytes", "cache_fraction")}
    return {name: sizes for name, sizes in given.items() if sizes}


def _joined(frames: list[pd.DataFrame]) -> pd.DataFrame:
    frame = pd.concat([part.astype(object) for part in frames], ignore_index=True).infer_objects()
    frame = frame.dropna(axis="columns", how="all")
    first = [name for name in ("trace", "policy", "predictor", "params", "seed") if name in frame]
    return frame[[*first, *(name for name in frame if name not in first)]]


def _as_text(file: Path | StringIO) -> pd.DataFrame:
    return pd.read_csv(file, keep_default_na=False, dtype=str)


def _same(before: pd.Series, now: pd.Series) -> np.ndarray:
    numbers = [pd.to_numeric(values, errors="coerce") for values in (before, now)]
    close = np.isclose(*numbers, rtol=_RELATIVE, atol=_ABSOLUTE)
    return close | (before == now).to_numpy()
