"""The accuracy table of the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tracekit.analysis.accuracy import (
    BY_LAYER,
    BY_NAMED,
    layers_scored,
    named_by_default,
    recall_scored,
)
from tracekit.figures import NONE, joined
from tracekit.predictors import PREDICTORS, LearnedPredictor
from tracekit.report.words import percent
from tracekit.routing.routers import Routers
from tracekit.scoring import predict
from tracekit.scoring.predict import DEFAULT
from tracekit.scoring.text import NO_RIVALS, alarm, label, sentences
from tracekit.scoring.usable import check_usable, missing_column
from tracekit.trace import Trace, TraceError

# Values of gate inputs up to which fitted predictors are scored unasked: a few seconds' work.
MOST_FITTED = 40_000_000

ADVICE = "what acting on it does to hits and read bytes stands below"

_IN_WORDS = {
    "embedding": "token embeddings",
    "gate_input": "gate inputs",
    "logits": "router logits",
    "norm_weight": "norm weights",
    "router_matrix": "router matrices",
    "token": "token ids",
}


@dataclass(frozen=True)
class Accuracy:
    """How well each predictor named the routing, and what is to be said about it.

    Attributes
    ----------
    rows : list of dict
        Texts of the table, one dict a predictor; `share` is the fraction behind its bar.
    sentences : list of str
        What the figures say.
    notes : list of str
        What was left out and why, what a fit cost.
    alarm : list of str
        What must be read before any figure.
    records : list of dict
        The figures themselves.
    frames : dict
        The data of the plots that follow from them, by the kind of plot.
    lacks : str or None
        Why nothing was scored.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    sentences: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    alarm: list[str] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    lacks: str | None = None


def score(trace: Trace, predictors: Sequence[str] | None, seed: int, jobs: int | None) -> Accuracy:
    """Score `predictors` on `trace`; None: all that its columns allow."""
    names, left_out = _usable(trace) if predictors is None else (predictors, [])
    named = named_by_default(trace)
    try:
        result = predict(trace, names, named=named, seed=seed, jobs=jobs)
    except TraceError as error:
        if predictors is not None:
            raise
        return Accuracy(lacks=str(error))
    rounded = result.rounded_routers
    first = alarm(result.records, rounded)
    frames = {
        "predictability": (layers_scored(result), BY_LAYER),
        "recall": (recall_scored(result, named), BY_NAMED),
    }
    return Accuracy(
        rows=[_row(record) for record in result.records],
        sentences=[s for s in sentences(result.records, ADVICE, rounded) if s not in first],
        notes=[*left_out, *(note for note in result.notes if note not in trace.warnings)],
        alarm=first,
        records=result.records,
        frames={
            kind: frame if predictors else frame[frame["predictor"].isin(drawn)]
            for kind, (frame, drawn) in frames.items()
        },
    )


def rivals(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the records of predictors that scored, and without having seen what they name."""
    return [r for r in records if r["slots"] and r["predictor"] not in NO_RIVALS]


def best_of(records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the record of the rival that names most."""
    return max(rivals(records), key=lambda r: r["slot_accuracy"], default=None)


def _usable(trace: Trace) -> tuple[list[str], list[str]]:
    """Return the predictors that can run on `trace`, and one sentence about those that cannot."""
    routers = Routers(trace)
    large = trace.n_rows * (trace.facts.model.n_embd or 0) > MOST_FITTED
    usable, lacking = [], {}
    for name in DEFAULT:
        cls = PREDICTORS.find(name)
        column = missing_column(trace, routers, cls)
        if column:
            why = f"the trace has no {_IN_WORDS.get(column, column)}"
        elif check_usable(trace, routers, cls):
            why = "the model has only one MoE layer"
        elif large and issubclass(cls, LearnedPredictor) and "gate_input" in cls.needs:
            why = "fitting takes long on a trace of this size (`tracekit predict` does it)"
        else:
            usable.append(name)
            continue
        lacking.setdefault(why, []).append(name)
    reasons = [f"{joined(names)}, as {why}" for why, names in lacking.items()]
    return usable, [f"Not scored: {'; '.join(reasons)}."] if reasons else []


def _row(record: dict[str, Any]) -> dict[str, Any]:
    interval = record["ci95"]
    return {
        "name": label(record),
        "share": record["slot_accuracy"],
        "slot_accuracy": percent(record["slot_accuracy"]),
        "interval": f"{100 * interval[0]:.1f} to {100 * interval[1]:.1f}" if interval else NONE,
        "exact_rate": percent(record["exact_rate"]),
        "routings": f"{record['routings']:,}",
        "unscored": f"{record['unscored']:,}",
    }
