"""How long tokens would take under a policy: what a fit of recorded times says of a run's bytes.

In: a fit, and the bytes that a run reads token by token. Out: `RowTime`. Nothing here prints.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from tracekit.figures import MIB, Declared, Unit, columns_of
from tracekit.policies.base import Batches, Cell, Limit, Policy
from tracekit.replaying.reads import reads_of
from tracekit.timing import Fit, Prediction, fit
from tracekit.timing.prediction import predict as predicted
from tracekit.trace import Trace, UsageError
from tracekit.trace.build import shown
from tracekit.trace.errors import MissingDataError, TraceError


@dataclass(frozen=True)
class RowTime:
    """How long a decoded token would take. Times are of a token, rates are 1000 / ms."""

    typical_tok_s: Annotated[
        float | None,
        Declared(Unit.PER_SECOND, "tokens a second, if every token were the typical one"),
    ] = None
    typical_ms: Annotated[
        float | None,
        Declared(
            Unit.MS,
            "the typical (median) token; null where refused, of a range and of a bound, which has no "
            "tokens",
        ),
    ] = None
    typical_low_ms: Annotated[
        float | None, Declared(Unit.MS, "lower end of the 95 % interval of the typical token")
    ] = None
    typical_high_ms: Annotated[
        float | None, Declared(Unit.MS, "upper end of the 95 % interval of the typical token")
    ] = None
    typical_fastest_ms: Annotated[
        float | None,
        Declared(
            Unit.MS,
            "of a policy that acts on a prediction: the typical token, if reading ahead runs beside "
            "computing as far as it can",
        ),
    ] = None
    typical_slowest_ms: Annotated[
        float | None,
        Declared(Unit.MS, "the same, if a token waits for whatever is read ahead"),
    ] = None
    at_least_ms: Annotated[
        float | None,
        Declared(
            Unit.MS, "the typical token takes at least this: the device would be short of memory"
        ),
    ] = None
    p95_ms: Annotated[float | None, Declared(Unit.MS, "one token in twenty takes longer")] = None
    mean_ms: Annotated[
        float | None,
        Declared(Unit.MS, "the mean token; of a bound: no policy of its class has a shorter one"),
    ] = None
    mean_low_ms: Annotated[
        float | None, Declared(Unit.MS, "lower end of its 95 % interval, where runs were repeated")
    ] = None
    mean_high_ms: Annotated[
        float | None, Declared(Unit.MS, "upper end of its 95 % interval, where runs were repeated")
    ] = None
    reading_share: Annotated[
        float | None, Declared(Unit.FRACTION, "the share of the typical token spent on reading")
    ] = None
    tok_s_above_lru: Annotated[
        float | None,
        Declared(
            Unit.FRACTION,
            "how many more tokens a second than LRU at that budget, if the typical token decides; of a "
            "policy that acts on a prediction: at most",
        ),
    ] = None
    is_measurable: Annotated[
        bool | None,
        Declared(Unit.FLAG, "that difference is at least twice the spread between runs"),
    ] = None
    is_extrapolated: Annotated[
        bool | None, Declared(Unit.FLAG, "the bytes are outside what the calibrated run read")
    ] = None
    time_refusals: Annotated[
        str | None, Declared(Unit.NAME, "what is not given, and why; null: nothing was refused")
    ] = None
    refusals: tuple[str, ...] = ()

    def to_record(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return {figure.name: getattr(self, figure.name) for figure in TIME_COLUMNS}


TIME_COLUMNS = columns_of(RowTime)


def calibration_of(time: bool | Fit, trace: Trace) -> Fit | None:
    """Return the fit that a replay of `trace` goes by, None if no times are asked for.

    Raises
    ------
    UsageError
        `time` is neither True, False nor a fit.
    TraceError, MissingDataError
        As for `check_calibration`; or `trace` itself has no times.
    """
    if not isinstance(time, (bool, Fit)):
        raise UsageError(
            f"time takes True, or a fit from tracekit.timing.fit, not {shown(time)}; fit a trace first."
        )
    if time is False:
        return None
    found = fit(trace) if time is True else time
    check_calibration(found, trace)
    return found


def check_calibration(fit: Fit, trace: Trace) -> None:
    """Refuse a fit to a trace of another model, and a trace whose tokens have no time of their own.

    Raises
    ------
    TraceError
        The model differs in its numbers or in the sizes of its experts.
    MissingDataError
        The sizes of experts are not known, or a decode pass has several tokens.
    """
    if trace.most_decoded_at_once > 1:
        raise MissingDataError(
            f"{trace.name} decodes up to {trace.most_decoded_at_once} tokens in one pass, so the time "
            "of a token cannot be said; replay a trace without drafted tokens."
        )
    if fit.model is None:
        return
    ours, theirs = trace.facts.model, fit.model
    for name in ("n_layer", "n_expert", "n_embd"):
        a, b = getattr(ours, name), getattr(theirs, name)
        if a is not None and b is not None and a != b:
            raise TraceError(
                f"{fit.name} cannot calibrate {trace.name}: its model has {name} = {b}, not {a}; "
                "calibrate on a recording of the same model."
            )
    if fit.expert_bytes is not None and not np.array_equal(fit.expert_bytes, trace.expert_bytes):
        raise TraceError(
            f"{fit.name} cannot calibrate {trace.name}: its experts have other sizes; calibrate on a "
            "recording of the same model file."
        )


def time_of(fit: Fit, policy: Policy, batches: Batches, cell: Cell | Limit) -> RowTime:
    """Return how long the tokens of a run would take.

    Parameters
    ----------
    fit : Fit
    policy : Policy
    batches : Batches
        What it was replayed on.
    cell : Cell or Limit
        What it gave.
    """
    after = fit.on_same_engine(
        cache_mib=cell.budget_bytes / MIB, lossy=policy.lossy, top_k=batches.top_k
    )
    decode = batches.counted_decode
    passes = batches.pass_id[decode]
    token = np.cumsum(np.diff(passes, prepend=passes[:1]) != 0)  # a pass is a token
    n = int(token[-1]) + 1 if len(token) else 0
    if isinstance(cell, Limit):
        return _of_limit(predicted(fit, [cell.read_bytes_decode / n] if n else [], after))
    of_token = np.bincount(token, reads_of(batches, cell).read_bytes[decode], n)
    slowest = predicted(fit, of_token, after)
    if not policy.needs_predictor:
        return _row(slowest)
    fastest = slowest
    if cell.prefetched is not None and n:
        layer = batches.layer[decode]
        n_layers = len(batches.expert_bytes)
        useful = np.bincount(
            token * n_layers + layer,
            cell.prefetched[decode] * batches.expert_bytes[layer],
            n * n_layers,
        ).reshape(-1, n_layers)
        fastest = predicted(fit, of_token, after, hidden_ms=fit.hidden_ms(useful))
    return _range(fastest, slowest)


def _row(prediction: Prediction) -> RowTime:
    return RowTime(
        typical_tok_s=prediction.typical_tok_s,
        typical_ms=prediction.typical_ms,
        typical_low_ms=prediction.low_ms,
        typical_high_ms=prediction.high_ms,
        at_least_ms=prediction.at_least_ms,
        p95_ms=prediction.p95_ms,
        mean_ms=prediction.mean_ms,
        mean_low_ms=prediction.mean_low_ms,
        mean_high_ms=prediction.mean_high_ms,
        reading_share=prediction.reading_share,
        is_extrapolated=prediction.extrapolated,
        **_refused(prediction.refusals),
    )


def _range(fastest: Prediction, slowest: Prediction) -> RowTime:
    return RowTime(
        typical_low_ms=fastest.low_ms,
        typical_high_ms=slowest.high_ms,
        typical_fastest_ms=fastest.typical_ms,
        typical_slowest_ms=slowest.typical_ms,
        at_least_ms=fastest.at_least_ms,
        is_extrapolated=slowest.extrapolated,
        **_refused(slowest.refusals),
    )


def _of_limit(prediction: Prediction) -> RowTime:
    return RowTime(
        mean_ms=prediction.mean_ms,
        is_extrapolated=prediction.extrapolated,
        **_refused(prediction.refusals),
    )


def _refused(sentences: tuple[str, ...]) -> dict[str, Any]:
    return {"time_refusals": " ".join(sentences) or None, "refusals": sentences}


def summary(fit: Fit, trace: Trace) -> dict[str, Any]:
    """Return what the fit says whatever is replayed, for ``config``; no figure where it is refused."""
    of_run = {
        "calibrated_on": fit.name,
        "tokens": len(fit.times.wall_ms),
        "typical_ms": fit.typical_ms,
        "facts": fit.facts.given(),
        "refused": fit.refusal,
    }
    if fit.refusal is not None:
        return of_run
    point = fit.point_ms(trace.token_cycle_bytes)
    return of_run | {
        "a_ms": fit.a_ms,
        "b_ms_per_mib": fit.b_ms_per_mib,
        "ceiling_tok_s": fit.ceiling_tok_s,
        "point_of_hit_rate_ms": point,
        "point_of_hit_rate_share": point / fit.typical_ms if fit.typical_ms > 0 else None,
        "run_spread": fit.spread.sd_log,
        "runs": fit.spread.n_runs,
    }
