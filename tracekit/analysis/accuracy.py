"""Prediction accuracy by layer, by horizon, and by how many experts are named.

In: a trace, or the result of `predict` on it. Out: frames that `tracekit.plots` draws.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tracekit.arguments import as_list, names_in, whole
from tracekit.formats import as_trace
from tracekit.predictors import PREDICTORS
from tracekit.routing.routers import Routers
from tracekit.scoring import PredictResult, predict
from tracekit.scoring.usable import why_unusable
from tracekit.trace import Trace

Names = str | Sequence[str] | None

BY_LAYER = ("stale-gate", "prev-token", "static-hot", "ctrl")
BY_HORIZON = ("stale-gate", "recall", "recall-gate", "stale-gate-renorm", "prev-token")
BY_NAMED = ("stale-gate", "recall", "prev-token", "static-hot")
FURTHEST = 4
HISTORIES = (30, 100, 300, 1000, 3000)

_INTERVAL = ["ci95_low", "ci95_high"]


def accuracy_by_layer(
    trace: Trace | str | Path,
    predictors: Names = None,
    *,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Slot accuracy of each predictor at each MoE layer, one layer ahead.

    Parameters
    ----------
    trace : Trace, str or Path
    predictors : str or sequence of str, optional
        Names, or ``module:Class``; `BY_LAYER` by default, as far as the trace carries what they
        need: ``attrs["notes"]`` of the frame says which were left out and why.
    seed : int
        Seed of the intervals' bootstrap.
    jobs : int, optional
        Threads.

    Returns
    -------
    DataFrame
        One row per (predictor, layer): ``predictor``, ``horizon``, ``layer``, ``routings``
        (scored), ``unscored``, ``slot_accuracy``, ``exact_rate`` (NaN where nothing was scored),
        ``ci95_low``, ``ci95_high`` (NaN where there is too little to draw from).

    Raises
    ------
    TraceError
        A predictor that was named needs what the trace does not have; no decoded token.
    """
    trace = as_trace(trace)
    chosen, notes = _usable(trace, predictors, BY_LAYER)
    return _noted(layers_scored(predict(trace, chosen, seed=seed, jobs=jobs)), notes)


def layers_scored(result: PredictResult) -> pd.DataFrame:
    """Return the rows of `accuracy_by_layer` from a result that is there already."""
    columns = ["predictor", "horizon", "layer", "routings", "unscored", "slot_accuracy"]
    return result.layers[[*columns, "exact_rate", *_INTERVAL]].copy()


def accuracy_by_horizon(
    trace: Trace | str | Path,
    predictors: Names = None,
    horizon: int | Sequence[int] | None = None,
    *,
    seed: int = 0,
    jobs: int | None = None,
    scored: PredictResult | None = None,
) -> pd.DataFrame:
    """Slot accuracy of each predictor by how many MoE layers ahead it looks.

    Parameters
    ----------
    trace : Trace, str or Path
    predictors : str or sequence of str, optional
        As for `accuracy_by_layer`; `BY_HORIZON` by default.
    horizon : int or sequence of int, optional
        1 to 4 by default, as far as the model has layers.
    seed, jobs
        As for `accuracy_by_layer`.
    scored : PredictResult, optional
        What was scored of this trace one layer ahead, with that seed: it is not scored again.

    Returns
    -------
    DataFrame
        One row per (predictor, horizon): ``predictor``, ``horizon`` (missing for a predictor that
        knows as much at any distance), ``routings``, ``unscored``, ``slot_accuracy``,
        ``exact_rate``, ``ci95_low``, ``ci95_high``. A longer horizon reaches fewer layers, so
        denominators differ.

    Raises
    ------
    TraceError
        As for `accuracy_by_layer`; and no predictor with a horizon can run on this trace.
    UsageError
        A horizon past the model.
    """
    trace = as_trace(trace)
    chosen, notes = _usable(trace, predictors, BY_HORIZON)
    if not any(PREDICTORS.find(name).has_horizon for name in chosen):
        chosen = ["stale-gate"]  # so that the error says what it lacks
    if horizon is None:
        horizon = range(1, max(2, min(FURTHEST + 1, len(trace.moe_layers))))
    horizon = [whole("horizons", h, 1) for h in as_list(horizon)]
    columns = ["predictor", "horizon", "routings", "unscored", "slot_accuracy", "exact_rate"]
    frames = []
    if scored is not None and 1 in horizon:
        before = scored.frame
        frames.append(before[before["predictor"].isin(chosen)])
        horizon = [h for h in horizon if h != 1]
        known = {*frames[0]["predictor"]}
        chosen = [n for n in chosen if n not in known or PREDICTORS.find(n).has_horizon]
    if horizon and chosen:
        result = predict(trace, chosen, horizon, per_layer=False, seed=seed, jobs=jobs)
        frames.append(result.frame)
    frame = pd.concat([each[[*columns, *_INTERVAL]] for each in frames], ignore_index=True)
    return _noted(frame, notes)


def accuracy_by_history(
    trace: Trace | str | Path,
    history: int | Sequence[int] | None = None,
    horizon: int | Sequence[int] | None = None,
    *,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Slot accuracy of recall by how many past tokens it remembers.

    Parameters
    ----------
    trace : Trace, str or Path
    history : int or sequence of int, optional
        Numbers of tokens; `HISTORIES` by default, as far as the trace is longer than the one before.
    horizon : int or sequence of int, optional
        1 and 4 by default, as far as the model has layers.
    seed, jobs
        As for `accuracy_by_layer`.

    Returns
    -------
    DataFrame
        One row per (horizon, history): ``predictor``, ``horizon``, ``history``, ``routings``,
        ``slot_accuracy``, ``ci95_low``, ``ci95_high``.

    Raises
    ------
    TraceError
        No decoded token, or only one MoE layer.
    UsageError
        A horizon past the model, or a history of no token.
    """
    trace = as_trace(trace)
    if horizon is None:
        horizon = [h for h in (1, 4) if h == 1 or h < len(trace.moe_layers)]
    if history is None:
        shorter = (0, *HISTORIES[:-1])
        pairs = zip(HISTORIES, shorter, strict=True)
        history = [n for n, less in pairs if less < trace.n_steps]
    frames = []
    for n in as_list(history):
        params = {"recall.history": n}
        result = predict(
            trace, "recall", horizon, per_layer=False, params=params, seed=seed, jobs=jobs
        )
        frames.append(result.frame.assign(history=n))
    columns = ["predictor", "horizon", "history", "routings", "slot_accuracy", *_INTERVAL]
    frame = pd.concat(frames, ignore_index=True)[columns]
    return frame.sort_values(["horizon", "history"], ignore_index=True)


def recall_by_named(
    trace: Trace | str | Path,
    predictors: Names = None,
    named: int | Sequence[int] | None = None,
    *,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Share of the selected experts that a predictor names, by how many it may name.

    Parameters
    ----------
    trace : Trace, str or Path
    predictors : str or sequence of str, optional
        As for `accuracy_by_layer`; `BY_NAMED` by default.
    named : int or sequence of int, optional
        Numbers of experts; k, 1.5 k, 2 k, 3 k and 4 k by default, as far as there are experts.
    seed, jobs
        As for `accuracy_by_layer`.

    Returns
    -------
    DataFrame
        One row per (predictor, named): ``predictor``, ``horizon``, ``named``, ``routings``,
        ``recall`` (of the selected experts), ``gate_mass`` (of their weight; NaN where no weight
        is known), ``chance`` (named / n_expert: what naming at random reaches).

    Raises
    ------
    TraceError
        As for `accuracy_by_layer`.
    UsageError
        More experts to name than the model has.
    """
    trace = as_trace(trace)
    chosen, notes = _usable(trace, predictors, BY_NAMED)
    named = named_by_default(trace) if named is None else as_list(named)
    result = predict(trace, chosen, named=named, per_layer=False, seed=seed, jobs=jobs)
    return _noted(recall_scored(result, named), notes)


def named_by_default(trace: Trace) -> list[int]:
    """Return how many experts `recall_by_named` lets a predictor name."""
    steps = {round(factor * trace.top_k) for factor in (1, 1.5, 2, 3, 4)}
    return sorted(m for m in steps if m <= trace.n_expert)


def recall_scored(result: PredictResult, named: Sequence[int]) -> pd.DataFrame:
    """Return the rows of `recall_by_named` from a result that scored `named`."""
    frame = pd.DataFrame(
        [
            {
                "predictor": row.predictor,
                "horizon": row.horizon,
                "named": m,
                "routings": row.routings,
                "recall": row.recall[m],
                "gate_mass": row.mass_named[m],
                "chance": m / result.n_expert,
            }
            for row in result.rows
            for m in named
        ]
    )
    return frame.astype({"recall": "float64", "gate_mass": "float64"})


def _usable(trace: Trace, named: Names, default: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names given, or those of `default` that can run and why the others cannot."""
    if named is not None:
        return names_in(named), []
    routers = Routers(trace)
    reasons = {name: why_unusable(trace, routers, PREDICTORS.find(name)) for name in default}
    usable = [name for name, reason in reasons.items() if reason is None]
    return usable, [f"Left out: {reason}" for reason in reasons.values() if reason]


def _noted(frame: pd.DataFrame, notes: list[str]) -> pd.DataFrame:
    """Return `frame` with `notes` as its attribute of that name."""
    frame.attrs["notes"] = notes
    return frame
