"""Prediction accuracy by layer, by horizon, and by how many experts are named."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from tracekit.arguments import as_list, names_in
from tracekit.formats import as_trace
from tracekit.predictors import PREDICTORS
from tracekit.routing.routers import Routers
from tracekit.scoring import PredictResult, predict
from tracekit.scoring.usable import check_usable
from tracekit.trace import Trace

BY_LAYER = ("stale-gate", "prev-token", "static-hot", "ctrl")
BY_HORIZON = ("stale-gate", "stale-gate-renorm", "prev-token")
BY_NAMED = ("stale-gate", "prev-token", "static-hot")
FURTHEST = 4


def accuracy_by_layer(
    trace: Trace | str | Path,
    predictors: str | Sequence[str] | None = None,
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
        Of the intervals' bootstrap.
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
    frame = layers_scored(predict(trace, chosen, seed=seed, jobs=jobs))
    frame.attrs["notes"] = notes
    return frame


def layers_scored(result: PredictResult) -> pd.DataFrame:
    """Return the rows of `accuracy_by_layer` from a result that is there already."""
    columns = ["predictor", "horizon", "layer", "routings", "unscored", "slot_accuracy"]
    return result.layers[[*columns, "exact_rate", "ci95_low", "ci95_high"]].copy()


def accuracy_by_horizon(
    trace: Trace | str | Path,
    predictors: str | Sequence[str] | None = None,
    horizon: int | Sequence[int] | None = None,
    *,
    seed: int = 0,
    jobs: int | None = None,
) -> pd.DataFrame:
    """Slot accuracy of each predictor by how many MoE layers ahead it looks.

    Parameters
    ----------
    trace : Trace, str or Path
    predictors : str or sequence of str, optional
        `BY_HORIZON` by default, as far as the trace carries what they need; see
        `accuracy_by_layer`.
    horizon : int or sequence of int, optional
        1 to 4 by default, as far as the model has layers.
    seed, jobs
        As for `accuracy_by_layer`.

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
    result = predict(trace, chosen, horizon, per_layer=False, seed=seed, jobs=jobs).frame
    columns = ["predictor", "horizon", "routings", "unscored", "slot_accuracy", "exact_rate"]
    frame = result[[*columns, "ci95_low", "ci95_high"]].copy()
    frame.attrs["notes"] = notes
    return frame


def recall_by_named(
    trace: Trace | str | Path,
    predictors: str | Sequence[str] | None = None,
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
        `BY_NAMED` by default, as far as the trace carries what they need; see
        `accuracy_by_layer`.
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
    named = as_list(named) if named is not None else named_by_default(trace)
    frame = recall_scored(
        predict(trace, chosen, named=named, per_layer=False, seed=seed, jobs=jobs), named
    )
    frame.attrs["notes"] = notes
    return frame


def named_by_default(trace: Trace) -> list[int]:
    """Return how many experts `recall_by_named` lets a predictor name."""
    steps = {round(factor * trace.top_k) for factor in (1, 1.5, 2, 3, 4)}
    return sorted(m for m in steps if m <= trace.n_expert)


def recall_scored(result: PredictResult, named: Sequence[int]) -> pd.DataFrame:
    """Return the rows of `recall_by_named` from a result that scored `named`."""
    return pd.DataFrame(
        [
            {
                "predictor": row["predictor"],
                "horizon": row["horizon"],
                "named": m,
                "routings": row["routings"],
                "recall": row[f"recall_{m}"],
                "gate_mass": row[f"mass_named_{m}"],
                "chance": m / result.n_expert,
            }
            for row in result.frame.to_dict("records")
            for m in named
        ]
    )


def _usable(
    trace: Trace, named: str | Sequence[str] | None, default: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Take what was named as it is; of the default, what can run, and say what cannot."""
    if named is not None:
        return names_in(named), []
    routers = Routers(trace)
    reasons = {name: check_usable(trace, routers, PREDICTORS.find(name)) for name in default}
    usable = [name for name, reason in reasons.items() if reason is None]
    return usable, [f"Left out: {reason}" for reason in reasons.values() if reason]
