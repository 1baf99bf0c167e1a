"""How far a prediction may be off: what another draw of tokens, and another run, would have given.

In: the times of a run and of its repetitions. Out: fits of drawn tokens, and the spread between runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.timing.huber import huber_line, spread_of
from tracekit.timing.times import Times

Z_95 = 1.96
DRAWS = 100
BLOCK = 16  # tokens; neighbours are alike
_MOST_DRAWN = 256  # tokens of a draw
_TOLERANCE = 1e-3
_MOST_ROUNDS = 5  # they begin at the fit of all tokens, which is near

# Points of each distribution whose sums are formed.
_POINTS = 128


@dataclass(frozen=True)
class RunSpread:
    """How much the typical token differs between runs of one configuration.

    Attributes
    ----------
    sd_log : float
        Standard deviation of the logarithm of the median token.
    n_runs : int
        Runs it was found from; 1: it is assumed.
    """

    sd_log: float
    n_runs: int

    @property
    def is_assumed(self) -> bool:
        """Whether no repetition was given."""
        return self.n_runs < 2


ASSUMED = RunSpread(0.05, 1)
_LEAST_SD = 0.025


def run_spread(runs: Sequence[np.ndarray]) -> RunSpread:
    """Return the spread between runs of one configuration.

    Parameters
    ----------
    runs : sequence of float64 [T]
        The wall times of the tokens of each; of one run alone, the spread is assumed.
    """
    if len(runs) < 2:
        return ASSUMED
    medians = np.array([np.median(wall_ms) for wall_ms in runs])
    return RunSpread(max(_LEAST_SD, float(np.log(medians).std(ddof=1))), len(runs))


@dataclass(frozen=True, eq=False)
class Draws:
    """Fits of drawn tokens.

    Attributes
    ----------
    a_ms, b_ms_per_mib, middle_ms : float64 [D]
        Of each draw: intercept, slope, and the median of its residuals.
    shrink : float
        By how much the deviations of draws are too large: they may have fewer tokens than the run.
    """

    a_ms: np.ndarray
    b_ms_per_mib: np.ndarray
    middle_ms: np.ndarray
    shrink: float

    def sd_ms(self, read_mib: float | np.ndarray) -> np.ndarray:
        """Return the standard deviation of what the draws say of tokens that read `read_mib`."""
        (of_level, both), (_, of_slope) = np.cov(self.a_ms + self.middle_ms, self.b_ms_per_mib)
        x = np.asarray(read_mib)
        variance = of_level + 2 * both * x + of_slope * x * x
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)) * self.shrink)


def draws_of(times: Times, line: tuple[float, float], seed: int = 0) -> Draws:
    """Draw stretches of 16 tokens with replacement, and fit each draw.

    A long run is drawn 256 tokens at a time; deviations shrink with the root of the tokens.

    Parameters
    ----------
    times : Times
    line : (a, b)
        The fit of all tokens.
    seed : int
    """
    n = len(times.wall_ms)
    size = min(n, _MOST_DRAWN)
    blocks = -(-size // BLOCK)
    starts = np.random.default_rng(seed).integers(n, size=(DRAWS, blocks, 1))
    tokens = ((starts + np.arange(BLOCK)) % n).reshape(DRAWS, -1)[:, :size]
    x, y = times.read_mib[tokens], times.wall_ms[tokens]
    varies = x.std(axis=1) > 0  # a draw of equal bytes has no slope
    x, y = x[varies], y[varies]
    # The scale is that of all tokens: the draws are of the same noise.
    scale = float(spread_of(times.wall_ms - line[0] - line[1] * times.read_mib)[0])
    a, b = huber_line(x, y, _TOLERANCE, line, _MOST_ROUNDS, scale)
    middle = np.median(y - a[:, None] - b[:, None] * x, axis=1)
    return Draws(a, b, middle, float(np.sqrt(size / n)))


def evenly(values: np.ndarray) -> np.ndarray:
    """Return `values`, or so many of them in even steps of rank that all sums stay quick."""
    if len(values) <= _POINTS:
        return values
    ranks = ((np.arange(_POINTS) + 0.5) * len(values) / _POINTS).astype(np.int64)
    return np.asarray(np.sort(values)[ranks])
