"""`sweep`: run a study over its traces and decide its claims.

In: a study. Out: the table of its result, and for each claim whether it holds. Nothing is written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from tracekit.analysis.closure import closures
from tracekit.arguments import as_list
from tracekit.figures import csv_cell, printable, settings
from tracekit.policies import POLICIES, load_policies
from tracekit.policies.bound import PRICES
from tracekit.predictors import Horizon
from tracekit.replaying import replay
from tracekit.scoring import predict
from tracekit.studies.claims import Verdict, decide
from tracekit.studies.find import open_traces
from tracekit.studies.spec import Run, Study, read_study
from tracekit.studies.transfers import measured_runs, transferred
from tracekit.table import Column, Table, as_html
from tracekit.trace import Trace, UsageError

# How long a fit took differs from run to run.
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
) -> StudyResult:
    """Run a study and decide its claims; nothing is written.

    Parameters
    ----------
    study : str, Path or Study
        A TOML file, or what `read_study` returned for it.
    traces : str or Path, optional
        The folder of fetched traces; the environment's TRACEKIT_TRACES by default.
    jobs : int, optional
        Threads.
    progress : callable, optional
        Called with (done, total) as runs get done.

    Raises
    ------
    UsageError
        The study is not valid, or a claim is about nothing.
    TracekitError
        A trace that has to be fetched is not there, or lacks the data that a run needs.
    """
    if not isinstance(study, Study):
        study = read_study(study)
    opened = open_traces(study, traces)
    measured = measured_runs(study, traces)
    work = [(name, run) for run in study.runs for name in run.traces or opened]
    n_parts = len(work) + len(study.transfers)
    frames, notes = [], []
    for done, (name, run) in enumerate(work, 1):
        for frame, sentences in _run(opened[name], run, opened.get(run.warm), jobs):
            frames.append(frame.assign(trace=name))
            notes += [f"{name}: {sentence}" for sentence in sentences]
        if progress is not None:
            progress(done, n_parts)
    for done, transfer in enumerate(study.transfers, len(work) + 1):
        frame = transferred(transfer, measured[transfer.measured])
        frames.append(frame.assign(trace=transfer.measured))
        if progress is not None:
            progress(done, n_parts)
    if not frames:
        raise UsageError(f"{study.path} runs nothing; give it a trace, a [[run]] and a seed.")
    frame = _combined(frames)
    verdicts = [decide(claim, frame) for claim in study.claims]
    warnings = dict.fromkeys(sentence for trace in opened.values() for sentence in trace.warnings)
    return StudyResult(study, frame, verdicts, list(dict.fromkeys(notes)), list(warnings))


def _run(
    trace: Trace, run: Run, warm: Trace | None, jobs: int | None
) -> list[tuple[pd.DataFrame, list[str]]]:
    """Return the tables of a run over one trace, each with its notes."""
    if run.predictors:
        return [_scored(trace, run, dict(params), jobs) for params in _combinations(run.params)]
    cycle = trace.token_cycle_bytes
    cache_bytes = [round(cycles * cycle) for cycles in run.cache_cycles] or run.cache_bytes
    if run.closures:
        return [_ranked(trace, run, cache_bytes)]
    params = {"bound.prices": PRICES, **run.params}
    stochastic = {name for name in run.policies if POLICIES.find(name).stochastic}
    results = []
    for number, seed in enumerate(run.seeds):
        policies = [name for name in run.policies if number == 0 or name in stochastic]
        if not policies:
            continue
        result = replay(
            trace,
            policies,
            cache_mib=run.cache_mib or None,
            cache_fraction=run.cache_fraction or None,
            cache_bytes=cache_bytes or None,
            cache_slots=run.cache_slots or None,
            params=params if number == 0 else _of(policies, params),
            bypass=run.bypass,
            skip=run.skip,
            warm=warm,
            seed=seed,
            jobs=jobs,
        )
        frame = result.frame.drop(columns="label")
        frame["params"] = frame["params"].map(settings)
        frame = frame.assign(skip=run.skip, warm=run.warm)
        cycles = (frame["cache_bytes"] / cycle).round(6)
        frame.insert(frame.columns.get_loc("cache_mib") + 1, "cache_cycles", cycles)
        seeds = [seed if name in stochastic else None for name in frame["policy"]]
        frame["seed"] = pd.Series(seeds, frame.index, dtype=object)
        results.append((frame, result.notes))
    return results


def _combinations(params: Mapping[str, Any]) -> Iterator[Iterable[tuple[str, Any]]]:
    """Yield each combination of the values of `params`; one without any if there are none."""
    values = ([(name, value) for value in as_list(given)] for name, given in params.items())
    return product(*values)


def _scored(
    trace: Trace, run: Run, params: Mapping[str, Any], jobs: int | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the accuracies of the predictors of a run with one set of parameters."""
    horizons = cast("list[Horizon]", run.horizon)  # `predict` refuses other texts
    result = predict(
        trace,
        run.predictors,
        horizons,
        run.named or None,
        per_layer=False,
        params=params,
        jobs=jobs,
    )
    frame = result.frame.drop(columns=list(_NOT_REPRODUCIBLE), errors="ignore")
    return frame.assign(params=settings(params)) if params else frame, result.notes


def _ranked(trace: Trace, run: Run, cache_bytes: Sequence[int]) -> tuple[pd.DataFrame, list[str]]:
    """Return the closures of the policies of a run, and what was left out."""
    frame = closures(
        trace,
        load_policies(run.policies, run.params, run.seeds[0]),
        cache_mib=run.cache_mib or None,
        cache_fraction=run.cache_fraction or None,
        cache_bytes=list(cache_bytes) or None,
        bypass=run.bypass,
    )
    return frame.assign(params=frame["params"].map(settings)), frame.attrs["notes"]


def _of(policies: Sequence[str], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `params` that are of `policies` or the bound, which any row is compared with."""
    owners = {*policies, *(POLICIES.find(name).name for name in policies), "bound"}
    return {name: value for name, value in params.items() if name.rpartition(".")[0] in owners}


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
