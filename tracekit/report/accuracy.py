"""The accuracy table of the report: what was scored, as texts of a table and as rows of figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from tracekit.analysis.accuracy import (
    BY_HORIZON,
    BY_LAYER,
    BY_NAMED,
    accuracy_by_horizon,
    layers_scored,
    named_by_default,
    recall_scored,
)
from tracekit.figures import NONE, joined
from tracekit.predictors import PREDICTORS, LearnedPredictor, Predictor
from tracekit.report.words import percent
from tracekit.routing.routers import Routers
from tracekit.scoring import PredictResult, predict
from tracekit.scoring.predict import default_predictors
from tracekit.scoring.rows import Row
from tracekit.scoring.text import alarm, sentences
from tracekit.scoring.usable import NEEDED_COLUMNS, missing_column, why_unusable
from tracekit.trace import Trace, TraceError

# Values of gate inputs up to which fitted predictors are scored unasked: a few seconds' work.
MOST_FITTED = 40_000_000

ADVICE = "what acting on it does to hits and read bytes stands below"


@dataclass(frozen=True)
class PredictorTexts:
    """The texts of a predictor; `share` is the fraction behind its bar."""

    name: str
    share: float | None
    slot_accuracy: str
    interval: str
    exact_rate: str
    routings: str
    unscored: str


@dataclass(frozen=True)
class Accuracy:
    """How well each predictor named the routing, in figures, sentences and data of plots.

    Attributes
    ----------
    rows : list of PredictorTexts
        The table.
    sentences : list of str
        What the figures say.
    notes : list of str
        What was left out and why, what a fit cost.
    alarm : list of str
        What must be read before any figure.
    scored : list of Row
        The figures themselves.
    frames : dict
        The data of the plots that show them, by the kind of plot.
    lacks : str or None
        Why nothing was scored.
    result : PredictResult or None
        Of which all this was made.
    """

    rows: list[PredictorTexts] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    alarm: list[str] = field(default_factory=list)
    scored: list[Row] = field(default_factory=list)
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    lacks: str | None = None
    result: PredictResult | None = None


def score(trace: Trace, predictors: Sequence[str] | None, seed: int, jobs: int | None) -> Accuracy:
    """Score `predictors` on `trace`; None: all that its columns allow."""
    names, left_out = _usable(trace) if predictors is None else (list(predictors), [])
    named = named_by_default(trace)
    try:
        result = predict(trace, names, named=named, seed=seed, jobs=jobs)
    except TraceError as error:
        if predictors is not None:
            raise
        return Accuracy(lacks=str(error))
    rounded = result.rounded_routers
    first = alarm(result.rows, rounded)
    frames = {
        "predictability": (layers_scored(result), BY_LAYER),
        "recall": (recall_scored(result, named), BY_NAMED),
    }
    return Accuracy(
        rows=[_texts(row) for row in result.rows],
        sentences=[s for s in sentences(result.rows, ADVICE, rounded) if s not in first],
        notes=[*left_out, *(note for note in result.notes if note not in trace.warnings)],
        alarm=first,
        scored=result.rows,
        frames={
            kind: frame if predictors else frame[frame["predictor"].isin(shown)]
            for kind, (frame, shown) in frames.items()
        },
        result=result,
    )


def by_horizon(
    trace: Trace, found: Accuracy, seed: int, jobs: int | None
) -> dict[str, pd.DataFrame]:
    """Return the data of the picture of horizons, if there is one; what was scored is not scored again."""
    shown = {row.predictor for row in found.scored}
    routers = Routers(trace)
    able = [n for n in BY_HORIZON if why_unusable(trace, routers, PREDICTORS.find(n)) is None]
    if not shown.issuperset(able) or not any(PREDICTORS.find(n).has_horizon for n in able):
        return {}
    return {"horizon": accuracy_by_horizon(trace, seed=seed, jobs=jobs, scored=found.result)}


def rivals(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of predictors that were scored and may be called the best."""
    return [row for row in rows if row.slots and row.scored.is_rival()]


def best_of(rows: Sequence[Row]) -> Row | None:
    """Return the row of the rival that names most."""
    return max(rivals(rows), key=lambda row: row.slot_accuracy or 0.0, default=None)


def _usable(trace: Trace) -> tuple[list[str], list[str]]:
    """Return the predictors that can run on `trace`, and one sentence about those that cannot."""
    routers = Routers(trace)
    large = trace.n_rows * (trace.facts.model.n_embd or 0) > MOST_FITTED
    usable: list[str] = []
    left_out: dict[str, list[str]] = {}
    for cls in default_predictors():
        reason = _why_not_scored(trace, routers, cls, large)
        if reason is None:
            usable.append(cls.name)
        else:
            left_out.setdefault(reason, []).append(cls.name)
    reasons = [f"{joined(names)}, as {why}" for why, names in left_out.items()]
    return usable, [f"Not scored: {'; '.join(reasons)}."] if reasons else []


def _why_not_scored(
    trace: Trace, routers: Routers, cls: type[Predictor], large: bool
) -> str | None:
    column = missing_column(trace, routers, cls)
    if column:
        return f"the trace has no {NEEDED_COLUMNS[column].in_words}"
    if why_unusable(trace, routers, cls):
        return "the model has only one MoE layer"
    if large and issubclass(cls, LearnedPredictor) and "gate_input" in cls.needs:
        return "fitting takes long on a trace of this size (`tracekit predict` does it)"
    return None


def _texts(row: Row) -> PredictorTexts:
    interval = row.ci95
    return PredictorTexts(
        name=row.label,
        share=row.slot_accuracy,
        slot_accuracy=percent(row.slot_accuracy),
        interval=f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else NONE,
        exact_rate=percent(row.exact_rate),
        routings=f"{row.routings:,}",
        unscored=f"{row.unscored:,}",
    )
