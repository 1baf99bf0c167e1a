"""What a fit says of a run with other bytes: its typical token, p95 and mean, and what it refuses.

In: a `Line`, and the bytes that each token would read. Out: a `Prediction`. Nothing here raises.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracekit.figures import MIB
from tracekit.timing import refusals
from tracekit.timing.facts import RunFacts
from tracekit.timing.line import Line
from tracekit.timing.refusals import Loses, Refusal
from tracekit.timing.spread import Z_95, evenly

# Of the slowest tokens' weight in the mean, as a share of the typical token.
MOST_EXCESS = 0.05


@dataclass(frozen=True)
class Prediction:
    """How long tokens would take.

    Attributes
    ----------
    typical_ms : float or None
        The median token; None where a refusal says why.
    low_ms, high_ms : float or None
        The 95 % interval of the typical token of a run; None where a refusal says why.
    p95_ms : float or None
        One token in twenty takes longer.
    mean_ms : float or None
        The mean token; None where a refusal says why.
    mean_low_ms, mean_high_ms : float or None
        Its 95 % interval, where repeated runs say how much runs differ.
    at_least_ms : float or None
        The typical token takes at least this, where memory runs short and no more can be said.
    reading_share : float or None
        The share of the typical token that goes with its bytes.
    extrapolated : bool
        The bytes are outside what the calibrated run read.
    refusals : tuple of str
        What is not given, and why.
    notes : tuple of str
        What a reader needs to know beside.
    """

    typical_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    p95_ms: float | None = None
    mean_ms: float | None = None
    mean_low_ms: float | None = None
    mean_high_ms: float | None = None
    at_least_ms: float | None = None
    reading_share: float | None = None
    extrapolated: bool = False
    refusals: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def typical_tok_s(self) -> float | None:
        """Tokens a second, if every token were the typical one."""
        return per_second(self.typical_ms)

    @property
    def mean_tok_s(self) -> float | None:
        """Tokens a second of the whole run."""
        return per_second(self.mean_ms)


def per_second(ms: float | None) -> float | None:
    """Return how many such times are in a second; None for None and for 0."""
    return None if ms is None or ms <= 0 else 1000 / ms


def predict(
    fit: Line,
    read_bytes: Any,
    after: RunFacts,
    unusable: Sequence[str] = (),
    hidden_ms: np.ndarray | None = None,
) -> Prediction:
    """Predict a run; see `tracekit.timing.Fit.predict`.

    Parameters
    ----------
    fit : Line
    read_bytes : array_like [N]
    after : RunFacts
        Of the run that is predicted.
    unusable : sequence of str
        Sentences about facts that were given and cannot be used.
    hidden_ms : float64 [N], optional
        Of the time that each token's bytes take, what runs beside computing.
    """
    read_mib, fault = _bytes(read_bytes)
    of_fit = () if fit.refusal is None else (fit.refusal,)
    found = [Refusal(Loses.ALL, sentence) for sentence in (*unusable, *fault, *of_fit)]
    found += refusals.of_facts(fit.facts, after)
    notes = (*fit.notes, *refusals.unknown(fit.facts, after), refusals.UNSEEN)
    lost = {each.loses for each in found}
    if Loses.ALL in lost:
        return Prediction(refusals=_said(found), notes=notes)
    reading_ms = fit.b_ms_per_mib * read_mib
    if hidden_ms is not None:
        reading_ms = reading_ms - hidden_ms
    typical, p95 = _quantiles(fit, reading_ms)
    mean = fit.a_ms + float(reading_ms.mean()) + float(fit.residuals.mean())
    if not (typical > 0 and mean > 0):
        found.append(
            Refusal(Loses.ALL, "The fit gives no time above 0 for so few bytes, so none is given.")
        )
        return Prediction(refusals=_said(found), notes=notes)
    outside = _outside(fit, read_mib)
    found += outside
    lost |= {each.loses for each in outside}
    if Loses.POINT in lost:
        return Prediction(
            at_least_ms=typical, extrapolated=bool(outside), refusals=_said(found), notes=notes
        )
    prediction = Prediction(
        typical_ms=typical,
        p95_ms=p95,
        reading_share=min(1.0, float(reading_ms.mean()) / typical),
        extrapolated=bool(outside),
    )
    if Loses.INTERVAL not in lost:
        low, high = _interval(fit, typical, float(np.median(read_mib)))
        prediction = replace(prediction, low_ms=low, high_ms=high)
    if fit.excess_ms > MOST_EXCESS * typical:
        found.append(
            Refusal(
                Loses.MEAN,
                f"The slowest tokens of {fit.name} add {fit.excess_ms:.3g} ms to its mean, more than "
                "5 % of a typical token: the mean is not given.",
            )
        )
    else:
        prediction = replace(prediction, mean_ms=mean)
        if not fit.spread.is_assumed and Loses.INTERVAL not in lost:
            low, high = _interval(fit, mean, float(read_mib.mean()))
            prediction = replace(prediction, mean_low_ms=low, mean_high_ms=high)
    return replace(prediction, refusals=_said(found), notes=notes)


@dataclass(frozen=True, eq=False)
class Band:
    """How long a token takes by what it reads, each float64 [N] in milliseconds.

    Attributes
    ----------
    typical_ms : float64 [N]
        The median of tokens that read so much.
    low_ms, high_ms : float64 [N]
        The 95 % interval of that median, in another run.
    p5_ms, p95_ms : float64 [N]
        One token in twenty is faster, and one in twenty slower.
    """

    typical_ms: np.ndarray
    low_ms: np.ndarray
    high_ms: np.ndarray
    p5_ms: np.ndarray
    p95_ms: np.ndarray


def band(fit: Line, read_mib: np.ndarray) -> Band:
    """Return how long a token takes that reads each of `read_mib`, float64 [N]; no refusal is heeded."""
    p5, middle, p95 = np.quantile(fit.residuals, [0.05, 0.5, 0.95])
    line = fit.a_ms + fit.b_ms_per_mib * read_mib
    typical = line + middle
    width = _width(fit, np.maximum(typical, 1e-300), read_mib)
    return Band(typical, typical / width, typical * width, line + p5, line + p95)


def _said(found: Sequence[Refusal]) -> tuple[str, ...]:
    return tuple(each.says for each in found)


def _bytes(read_bytes: Any) -> tuple[np.ndarray, list[str]]:
    """Return MiB of each token, and a sentence if there are none."""
    try:
        read = np.asarray(read_bytes, np.float64)
    except (TypeError, ValueError, OverflowError):
        read = np.array([np.nan])
    if read.ndim != 1 or not read.size:
        return read, ["The bytes of the run hold no token; give one number for each."]
    if not (np.isfinite(read) & (read >= 0)).all():
        return read, [
            "The bytes of the run are not all finite numbers that are not negative; give the bytes "
            "that each token reads."
        ]
    return read / MIB, []


def _outside(fit: Line, read_mib: np.ndarray) -> list[Refusal]:
    mean = float(read_mib.mean())
    low, high = fit.usual_mib
    if low <= mean <= high:
        return []
    more = "more" if mean > high else "less"
    return [
        Refusal(
            Loses.INTERVAL,
            f"Tokens read {more} on average than the {low:.4g} to {high:.4g} MiB of most tokens of "
            f"{fit.name} (2nd to 98th percentile): the time is extrapolated, and has no interval.",
        )
    ]


def _quantiles(fit: Line, reading_ms: np.ndarray) -> tuple[float, float]:
    """Return the median and 95th percentile of every token's reading with every residual."""
    sums = (fit.a_ms + evenly(reading_ms)[:, None] + fit.some_residuals).ravel()
    # As numpy.quantile, which takes longer: between the two values that are nearest in rank.
    ranks = np.array([0.5, 0.95]) * (len(sums) - 1)
    below = ranks.astype(np.int64)
    above = np.minimum(below + 1, len(sums) - 1)
    sums.partition(np.unique([below, above]))
    typical, p95 = sums[below] + (ranks - below) * (sums[above] - sums[below])
    return float(typical), float(p95)


def _interval(fit: Line, ms: float, read_mib: float) -> tuple[float, float]:
    """Return the 95 % interval around `ms`: another draw of tokens, and another run."""
    width = float(_width(fit, np.array(ms), np.array(read_mib)))
    return ms / width, ms * width


def _width(fit: Line, ms: np.ndarray, read_mib: np.ndarray) -> np.ndarray:
    """Return by which factor times around `ms` may be off, in a 95 % interval."""
    of_fit = fit.draws.sd_ms(read_mib) / ms
    return np.asarray(np.exp(Z_95 * np.hypot(of_fit, fit.spread.sd_log)))
