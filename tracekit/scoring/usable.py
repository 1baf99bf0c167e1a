"""Which predictors can run on a trace, and what the others lack.

In: a trace, its routers and classes of predictors. Out: names of columns, and sentences. This module
makes no predictor and reads no column.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.figures import joined
from tracekit.predictors import TOKEN, Horizon, Predictor
from tracekit.routing.blocks import ROUTING_COLUMNS, STEP_COLUMNS
from tracekit.routing.routers import Routers
from tracekit.trace import Trace
from tracekit.trace.build import shown
from tracekit.trace.errors import TraceError, UsageError


@dataclass(frozen=True)
class NeededColumn:
    """A column that predictors may need besides ``experts``.

    Attributes
    ----------
    file : {"routing", "steps", "layers"}
        Which Parquet file has it.
    in_words : str
        What it holds.
    option : str or None
        The option of ``tracekit record`` that leaves it out.
    import_flags : str or None
        The options of ``tracekit import`` that take it from the model's file.
    """

    file: str
    in_words: str
    option: str | None = None
    import_flags: str | None = None


NEEDED_COLUMNS = {
    "weights": NeededColumn("routing", "weights"),
    "logits": NeededColumn("routing", "router logits", "--no-logits"),
    "gate_input": NeededColumn("routing", "gate inputs", "--no-gate-inputs"),
    "token": NeededColumn("steps", "token ids"),
    "embedding": NeededColumn(
        "steps", "token embeddings", "--no-gate-inputs", "--model PATH --embeddings"
    ),
    "router_matrix": NeededColumn("layers", "router matrices", import_flags="--model PATH"),
    "norm_weight": NeededColumn("layers", "norm weights", import_flags="--model PATH"),
}


def columns_to_read(predictors: Sequence[Predictor], *optional: str) -> list[str]:
    """Return the columns of routings and steps that `predictors` need, and `optional` ones."""
    wanted = {*optional, *(column for p in predictors for column in p.needs)}
    return [c for c in (*ROUTING_COLUMNS, *STEP_COLUMNS) if c in wanted]


def missing_column(trace: Trace, routers: Routers, cls: type[Predictor]) -> str | None:
    """Return the first column that `cls` needs and `trace` has not, or None."""
    has = {"routing": trace.has, "steps": trace.has_steps, "layers": routers.has}
    for name in cls.needs:
        if name not in NEEDED_COLUMNS:
            raise UsageError(
                f"{cls.name} needs a column {name!r}, but predictors can need only "
                f"{', '.join(NEEDED_COLUMNS)}."
            )
        if not has[NEEDED_COLUMNS[name].file](name):
            return name
    return None


def missing_column_sentence(trace: Trace, names: Sequence[str], column: str) -> str:
    """Return the sentence that `trace` lacks `column`, which the predictors `names` need."""
    needed = NEEDED_COLUMNS[column]
    how = "`tracekit record` writes it"
    if needed.option and trace.facts.source == "recorded":
        how = f"record without {needed.option}"
    elif needed.import_flags and trace.facts.source == "imported":
        command = f"tracekit import TRACE {needed.import_flags} -o NAME.trace"
        how = f"`{command}` takes it from the model's file"
    elif needed.option:
        how = "`tracekit record` writes it unless told not to"
    *others, last = names
    who = f"{', '.join(others)} and {last} need" if others else f"{last} needs"
    return (
        f"{who} the column {column!r} of {needed.file}.parquet, which "
        f"{trace.name} does not have: {how}."
    )


def too_late_sentence(names: Sequence[str]) -> str:
    """Return the sentence that the predictors `names` cannot be asked before the token has begun."""
    looks = "looks" if len(names) == 1 else "look"
    return f"At horizon {TOKEN}, {joined(names)} {looks} from a layer of the token itself."


def check_horizons(horizons: Sequence[Horizon], n_layers: int) -> None:
    """Refuse horizons that no layer has.

    Raises
    ------
    UsageError
        A horizon is less than 1, or reaches past the model.
    """
    for horizon in horizons:
        if horizon == TOKEN:
            continue
        if horizon < 1:
            raise UsageError(f"A horizon is 1 layer or more, not {shown(horizon)}.")
        if horizon >= n_layers > 1:
            raise UsageError(
                f"A horizon of {shown(horizon)} reaches past the model: it has {n_layers} MoE layers, so "
                f"the furthest is {n_layers - 1}."
            )


def why_unusable(
    trace: Trace, routers: Routers, cls: type[Predictor], horizons: Sequence[Horizon] = (1,)
) -> str | None:
    """Return in one sentence why `cls` cannot run on `trace` at `horizons`, or None if it can."""
    column = missing_column(trace, routers, cls)
    if column:
        return missing_column_sentence(trace, [cls.name], column)
    before_token = cls.looks_before_token and TOKEN in horizons
    if cls.has_horizon and routers.n_layers == 1 and not before_token:
        return f"{cls.name} looks from one MoE layer at a later one, and {trace.name} has only one."
    return cls.cannot_run_on(routers)


def check_training(trace: Trace, train: Trace) -> None:
    """Refuse to learn on a trace of another model, and on the trace that is scored."""
    check_other(trace, train, "What is learned on {} says nothing of {}", "what is learned on it")


def check_other(trace: Trace, other: Trace, verdict: str, what: str) -> None:
    """Refuse `other` if it is of another model than `trace`, or holds the same routings.

    Parameters
    ----------
    trace, other : Trace
    verdict : str
        What is wrong with another model, with places for the names of `other` and of `trace`.
    what : str
        What would flatter if it held the same routings.

    Raises
    ------
    TraceError
        It is of another model.
    UsageError
        It holds the same routings.
    """
    wrong = verdict.format(other.name, trace.name)
    a, b = trace.facts.model, other.facts.model
    for name in ("n_expert", "top_k", "n_embd"):
        if getattr(a, name) != getattr(b, name):
            raise TraceError(
                f"{wrong}: its model has {name} = {getattr(b, name)}, not {getattr(a, name)}; give a "
                "trace of the same model."
            )
    if not np.array_equal(trace.moe_layers, other.moe_layers):
        raise TraceError(f"{wrong}: its MoE layers are others; give a trace of the same model.")
    if other is trace or other.digest == trace.digest:
        raise UsageError(
            f"{other.name} holds the same routings as {trace.name}, so {what} would flatter; give "
            "another trace, or none."
        )
