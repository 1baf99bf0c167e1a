"""`predict`: score predictors on a trace."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tracekit.arguments import as_list, names_in, whole
from tracekit.figures import joined
from tracekit.params import make_params
from tracekit.predictors import PREDICTORS, Predictor
from tracekit.routing.routers import Routers
from tracekit.routing.turns import DecodedTurns
from tracekit.scoring.result import PredictResult
from tracekit.scoring.run import score
from tracekit.scoring.tally import Tally
from tracekit.scoring.training import Entry, Training, learn
from tracekit.scoring.usable import check_horizons, check_usable, lacks, missing_column
from tracekit.stats.bootstrap import Bootstrap
from tracekit.stats.units import Units
from tracekit.trace import Trace
from tracekit.trace.errors import MissingDataError, TraceError, UsageError

DEFAULT = (
    "stale-gate",
    "prev-token",
    "ctrl",
    "static-hot",
    "layer-lag",
    "random-guess",
    "stale-gate-renorm",
    "stale-gate-fit",
    "embedding-gate",
    "token-table",
    "combined",
)


def _chosen(
    trace: Trace, routers: Routers, names: Sequence[str] | None
) -> tuple[list[type[Predictor]], list[str]]:
    """Return the predictors to score, and a sentence about each reason to leave one out."""
    classes, reasons, lacking = [], [], {}
    for name in DEFAULT if names is None else dict.fromkeys(names):
        cls = PREDICTORS.find(name)
        reason = check_usable(trace, routers, cls)
        if reason is None:
            classes.append(cls)
        elif column := missing_column(trace, routers, cls):
            lacking.setdefault(column, []).append(name)
        else:
            reasons.append(reason)
    reasons += [lacks(trace, without, column) for column, without in lacking.items()]
    if not classes and reasons:
        raise MissingDataError(" ".join(reasons))
    return classes, [f"Left out: {reason}" for reason in reasons]


def _by_other_rules(routers: Routers, classes: Sequence[type[Predictor]]) -> list[str]:
    """Return the sentence about layers where no logits select, if a predictor needs a router."""
    names = [cls.name for cls in classes if "router_matrix" in cls.needs]
    layers = [
        str(number)
        for layer, number in enumerate(routers.layer_ids.tolist())
        if not routers.knows(layer, "router_matrix")
    ]
    if not names or not layers:
        return []
    where = f"layer {layers[0]} selects" if len(layers) == 1 else f"layers {joined(layers)} select"
    return [
        f"Not by logits: {where} experts without a router, for instance from a table by token id; "
        f"unscored there: {joined(names)}."
    ]


def _params(
    classes: Sequence[type[Predictor]], params: Mapping[str, Any]
) -> dict[type[Predictor], Any]:
    """Return the parameters of each of `classes`, set from ``{"NAME.FIELD": value}``."""
    fields: dict[str, dict[str, Any]] = {cls.name: {} for cls in classes}
    for key, value in params.items():
        name, _, field = key.rpartition(".")
        if name not in fields:
            raise UsageError(f"A parameter is set for {name!r}, which is not scored here.")
        fields[name][field] = value
    return {cls: make_params(cls.name, cls.Params, fields[cls.name]) for cls in classes}


def _checked_named(named: Sequence[int] | None, top_k: int, n_expert: int) -> tuple[int, ...]:
    for m in named or ():
        if not 1 <= m <= n_expert:
            raise UsageError(
                f"{m} experts cannot be named: the model has {n_expert}; name between 1 and that."
            )
    return tuple(sorted({top_k, *(named or ())}))


# The layers are spread over threads of our own. Those of the BLAS wait by spinning, which costs a
# hundredfold where another process wants the cores.
@threadpool_limits.wrap(limits=1, user_api="blas")
def predict(
    trace: Trace,
    predictors: str | Sequence[str] | None = None,
    horizons: int | Sequence[int] = (1,),
    named: int | Sequence[int] | None = None,
    per_layer: bool = True,
    train: Trace | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PredictResult:
    """Score how much of the routing of each decoded token could be known before it runs.

    Parameters
    ----------
    trace : Trace
    predictors : str or sequence of str, optional
        Names, or ``module:Class`` of your own; in one word, with commas between. None: all whose
        columns the trace has; the result's `notes` say which were left out and why.
    horizons : int or sequence of int
        How many MoE layers ahead the predictors with a horizon look.
    named : int or sequence of int, optional
        Numbers of experts to name besides k: recall is given for each.
    per_layer : bool
        Give intervals for each layer too, and put the layers into JSON.
    train : Trace, optional
        Learn on this trace. Without it, learned predictors are scored on each turn from the others;
        of a single turn the first half trains and is unscored.
    params : mapping, optional
        ``{"mine.window": 3}`` sets a field of the ``Params`` of the predictor called ``mine``.
    seed : int
        Of ``random-guess`` and the bootstrap.
    jobs : int, optional
        Threads; None: one for each core.
    progress : callable, optional
        Called with (routings done, routings in all).

    Returns
    -------
    PredictResult

    Raises
    ------
    UsageError
        An unknown predictor or parameter, a horizon past the model, more experts named than there
        are; a `train` that is the trace itself.
    TraceError
        A predictor that was asked for needs a column that the trace has not; a damaged column; a
        trace without decoded tokens; a `train` of another model.
    """
    predictors = None if predictors is None else names_in(predictors)
    horizons = list(dict.fromkeys(whole("horizons", h, 1) for h in as_list(horizons)))
    named = None if named is None else [whole("named", m, 1) for m in as_list(named)]
    seed = whole("seed", seed, 0)
    jobs = os.cpu_count() or 1 if jobs is None else whole("jobs", jobs, 1, "a number of threads")
    routers = Routers(trace)
    turns = DecodedTurns.of(trace)
    check_horizons(horizons, routers.n_layers)
    classes, left_out = _chosen(trace, routers, predictors)
    params_of = _params(classes, params or {})
    named = _checked_named(named, routers.top_k, routers.n_expert)
    units = Units.of(turns.turn, turns.tokens)
    if train is not None:
        _check_same_model(trace, train)
        if train is trace or train.digest == trace.digest:
            raise UsageError(
                f"{train.name} holds the routings that are scored, so what is learned on it would "
                "flatter; train on another trace, or leave it out."
            )

    def entry(cls: type[Predictor], horizon: int | None) -> Entry:
        tally = Tally(routers.n_layers, routers.top_k, named, len(units))
        return Entry(cls(routers, horizon or 1, seed, params_of[cls]), horizon, tally)

    entries = [
        entry(cls, horizon)
        for cls in classes
        for horizon in (horizons if cls.has_horizon else [None])
    ]
    training = Training(trace, turns, train)
    learn(entries, training, jobs)
    score(trace, entries, routers, training, units, jobs, progress)
    return PredictResult(
        trace,
        entries,
        routers.layer_ids,
        Bootstrap(units.turn, seed),
        int(np.sum(turns.tokens)),
        per_layer,
        [*_by_other_rules(routers, classes), *left_out],
        {
            "horizons": horizons,
            "named": list(named),
            "train": None if train is None else train.name,
            "params": dict(params or {}),
            "seed": seed,
        },
    )


def _check_same_model(trace: Trace, train: Trace) -> None:
    a, b = trace.facts.model, train.facts.model
    for what in ("n_expert", "top_k", "n_embd"):
        if getattr(a, what) != getattr(b, what):
            raise TraceError(
                f"{train.name} cannot train for {trace.name}: its model has {what} = "
                f"{getattr(b, what)}, not {getattr(a, what)}; train on a trace of the same model."
            )
    if not np.array_equal(trace.moe_layers, train.moe_layers):
        raise TraceError(
            f"{train.name} cannot train for {trace.name}: its MoE layers are others; train on a "
            "trace of the same model."
        )
