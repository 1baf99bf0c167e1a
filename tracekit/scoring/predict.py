"""`predict`: which predictors are scored on a trace, with what parameters, learning from what.

In: a trace and what the user asked for. Out: a `PredictResult`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tracekit.arguments import as_list, names_in, whole
from tracekit.figures import joined
from tracekit.params import make_params
from tracekit.predictors import PREDICTORS, TOKEN, Horizon, Predictor
from tracekit.routing.blocks import BLOCK_TOKENS
from tracekit.routing.routers import Routers
from tracekit.routing.turns import DecodedTurns
from tracekit.scoring.ranking import one_blas_thread
from tracekit.scoring.result import PredictResult
from tracekit.scoring.rows import row_of
from tracekit.scoring.run import score
from tracekit.scoring.text import fit_sentences
from tracekit.scoring.training import Entry, Training
from tracekit.scoring.usable import (
    check_horizons,
    check_training,
    missing_column,
    missing_column_sentence,
    too_late_sentence,
    why_unusable,
)
from tracekit.stats.bootstrap import Bootstrap
from tracekit.stats.units import Units
from tracekit.trace import Trace
from tracekit.trace.build import shown
from tracekit.trace.errors import MissingDataError, UsageError


def default_predictors() -> list[type[Predictor]]:
    """Return the predictors that are scored where none is named, in the order of the registry."""
    return [cls for cls in PREDICTORS if cls.by_default]


@one_blas_thread()
def predict(
    trace: Trace,
    predictors: str | type[Predictor] | Sequence[str | type[Predictor]] | None = None,
    horizons: Horizon | Sequence[Horizon] = (1,),
    named: int | Sequence[int] | None = None,
    per_layer: bool = True,
    train: Trace | None = None,
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> PredictResult:
    """Score how much of the routing of each decoded token could be known before it runs.

    Parameters
    ----------
    trace : Trace
    predictors : str, type, or sequence of them, optional
        Names, or your own: ``module:Class``, or the class itself. One text can hold several, with
        commas between. None: all that are scored by default and whose columns the trace has; the
        result's `notes` say which were left out and why.
    horizons : int, "token" or sequence of them
        How many MoE layers ahead the predictors with a horizon look; ``"token"``: before the token
        has begun. The result's `notes` say which predictors look from a layer of the token itself,
        and are left out there.
    named : int or sequence of int, optional
        Numbers of experts to name besides k: recall is given for each.
    per_layer : bool
        Give intervals for each layer too, and put the layers into JSON.
    train : Trace, optional
        Learn on this trace; online predictors begin with its tokens as their history. Without it,
        learned predictors are scored on each turn from the others, and the first half of a single
        turn trains and is unscored; online ones begin with nothing.
    params : mapping, optional
        ``{"mine.window": 3}`` sets a field of the ``Params`` of the predictor called ``mine``. A
        text is read as the field's type, and taken as it is for a field of text.
    seed : int
        Seed of ``random-guess`` and the bootstrap.
    jobs : int, optional
        Threads; None: one for each core.
    progress : callable, optional
        Called with (routings done, routings in all).
    block_tokens : int
        The most decoded tokens that are in memory at once. It changes no result, except that sums
        of floats may round otherwise.

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
    given = None if predictors is None else names_in(predictors)
    if given == []:
        raise UsageError("There is no predictor to score; name at least one.")
    horizons = _horizons(horizons)
    more_named = [] if named is None else [whole("named", m, 1) for m in as_list(named)]
    seed = whole("seed", seed, 0)
    jobs = os.cpu_count() or 1 if jobs is None else whole("jobs", jobs, 1, "a number of threads")
    block_tokens = whole("block_tokens", block_tokens, 1)
    routers = Routers(trace)
    turns = DecodedTurns.of(trace)
    check_horizons(horizons, routers.n_layers)
    classes, left_out = _chosen(trace, routers, given, horizons)
    params_of = _params(classes, params or {})
    all_named = _with_top_k(more_named, routers.top_k, routers.n_expert)
    if train is not None:
        check_training(trace, train)
    entries = [
        Entry(cls(routers, horizon or 1, seed, params_of[name]), horizon)
        for name, cls in classes.items()
        for horizon in _horizons_of(cls, horizons)
    ]
    training = Training(trace, turns, train)
    training.teach(entries, jobs, block_tokens)
    units = Units.of(turns.turn, turns.tokens)
    tallies = score(trace, entries, training, all_named, units, jobs, progress, block_tokens)
    bootstrap = Bootstrap(units.turn, seed)
    notes = [*_without_router(routers, classes), *left_out, *fit_sentences(entries)]
    if routers.top_k == routers.n_expert:
        notes.append(
            f"Every routing selects all {routers.n_expert} experts, so any guess is right."
        )
    return PredictResult(
        rows=[
            row_of(entry, tally, routers.layer_ids, bootstrap, per_layer)
            for entry, tally in zip(entries, tallies, strict=True)
        ],
        config={
            "predictors": [cls.name for cls in classes.values()],
            "horizons": horizons,
            "named": list(all_named),
            "train": None if train is None else train.name,
            "params": dict(params or {}),
            "seed": seed,
        },
        notes=notes,
        trace=trace,
        layer_ids=routers.layer_ids,
        n_tokens=int(np.sum(turns.tokens)),
        per_layer=per_layer,
        bootstrap=bootstrap,
    )


def _horizons(given: object) -> list[Horizon]:
    """Read numbers of layers and ``token``, each once."""
    horizons: list[Horizon] = []
    for horizon in as_list(given):
        if isinstance(horizon, str) and horizon != TOKEN:
            raise UsageError(
                f"horizons takes whole numbers from 1 on, or {TOKEN!r}, not {shown(horizon)}."
            )
        horizons.append(TOKEN if horizon == TOKEN else whole("horizons", horizon, 1))
    return list(dict.fromkeys(horizons))


def _horizons_of(cls: type[Predictor], horizons: Sequence[Horizon]) -> Sequence[Horizon | None]:
    """Return at which of `horizons` a predictor is scored; None of one without a horizon."""
    if not cls.has_horizon:
        return [None]
    return [h for h in horizons if h != TOKEN or cls.looks_before_token]


def _chosen(
    trace: Trace,
    routers: Routers,
    predictors: Sequence[str | type[Predictor]] | None,
    horizons: Sequence[Horizon],
) -> tuple[dict[str, type[Predictor]], list[str]]:
    """Return the predictors to score by the names given, and why others are left out.

    Raises
    ------
    MissingDataError
        None of them can run on `trace`.
    """
    if predictors is None:
        predictors = default_predictors()
    classes: dict[str, type[Predictor]] = {}
    reasons: list[str] = []
    lacking: dict[str, list[str]] = {}
    too_late: list[str] = []
    for predictor in dict.fromkeys(predictors):
        cls = PREDICTORS.find(predictor)
        name = predictor if isinstance(predictor, str) else cls.name
        reason = why_unusable(trace, routers, cls, horizons)
        if reason is None:
            if TOKEN in horizons and cls.has_horizon and not cls.looks_before_token:
                too_late.append(name)
            if _horizons_of(cls, horizons):
                classes[name] = cls
        elif column := missing_column(trace, routers, cls):
            lacking.setdefault(column, []).append(name)
        else:
            reasons.append(reason)
    reasons += [missing_column_sentence(trace, without, c) for c, without in lacking.items()]
    if too_late:
        reasons.append(too_late_sentence(too_late))
    if not classes and reasons:
        raise MissingDataError(" ".join(reasons))
    return classes, [f"Left out: {reason}" for reason in reasons]


def _without_router(routers: Routers, classes: Mapping[str, type[Predictor]]) -> list[str]:
    """Return the sentence about layers where no router selects, if a predictor needs one."""
    names = [name for name, cls in classes.items() if "router_matrix" in cls.needs]
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


def _params(classes: Mapping[str, type[Predictor]], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of each of `classes`, set from ``{"NAME.FIELD": value}``.

    NAME is what the user called the predictor, or its own name.
    """
    given = {cls.name: name for name, cls in classes.items()} | {name: name for name in classes}
    fields: dict[str, dict[str, Any]] = {name: {} for name in classes}
    for key, value in params.items():
        owner, _, field = key.rpartition(".")
        if owner not in given:
            raise UsageError(f"A parameter is set for {shown(owner)}, which is not scored here.")
        fields[given[owner]][field] = value
    return {name: make_params(cls.name, cls.Params, fields[name]) for name, cls in classes.items()}


def _with_top_k(named: Sequence[int], top_k: int, n_expert: int) -> tuple[int, ...]:
    """Return the numbers of experts to name, k among them, ascending."""
    for m in named:
        if not 1 <= m <= n_expert:
            raise UsageError(
                f"{m} experts cannot be named: the model has {n_expert}; name between 1 and that."
            )
    return tuple(sorted({top_k, *named}))
