"""Which predictors can run on a trace, and what the others lack."""

from collections.abc import Sequence

from tracekit.predictors import Predictor
from tracekit.routing.routers import Routers
from tracekit.trace import Trace
from tracekit.trace.errors import UsageError

_HOW = {
    "gate_input": "record without --no-gate-inputs",
    "embedding": "record without --no-gate-inputs",
    "logits": "record without --no-logits",
}
_FILE = {"token": "steps", "embedding": "steps", "router_matrix": "layers", "norm_weight": "layers"}


def missing_column(trace: Trace, routers: Routers, cls: type[Predictor]) -> str | None:
    """Return the first column that `cls` needs and `trace` has not, or None."""
    for column in cls.needs:
        kind = _FILE.get(column, "routing")
        has = {"routing": trace.has, "steps": trace.has_steps, "layers": routers.has}[kind]
        if not has(column):
            return column
    return None


def lacks(trace: Trace, names: Sequence[str], column: str) -> str:
    """Return the sentence that `trace` lacks `column`, which the predictors `names` need."""
    how = _HOW.get(column, "`tracekit record` writes it")
    if trace.facts.source != "recorded" and column in _HOW:
        how = "`tracekit record` writes it unless told not to"
    *others, last = names
    who = f"{', '.join(others)} and {last} need" if others else f"{last} needs"
    return (
        f"{who} the column {column!r} of {_FILE.get(column, 'routing')}.parquet, which "
        f"{trace.name} does not have: {how}."
    )


def check_horizons(horizons: Sequence[int], n_layers: int) -> None:
    """Refuse horizons that no layer has.

    Raises
    ------
    UsageError
    """
    for horizon in horizons:
        if horizon < 1:
            raise UsageError(f"A horizon is 1 layer or more, not {horizon}.")
        if horizon >= n_layers > 1:
            raise UsageError(
                f"A horizon of {horizon} reaches past the model: it has {n_layers} MoE layers, so "
                f"the furthest is {n_layers - 1}."
            )


def check_usable(trace: Trace, routers: Routers, cls: type[Predictor]) -> str | None:
    """Return in one sentence why `cls` cannot run on `trace`, or None if it can."""
    column = missing_column(trace, routers, cls)
    if column:
        return lacks(trace, [cls.name], column)
    if cls.has_horizon and routers.n_layers == 1:
        return f"{cls.name} looks from one MoE layer at a later one, and {trace.name} has only one."
    return None
