"""By how much is one configuration slower than another, and is that shown? Several runs of each say so.

In: the times of every token of every run. Out: an `Effect`. Nothing here knows a trace.

The run is the unit, not the token: runs of one configuration differ by more than the scatter of
their tokens says. So each run gives one number, and the interval comes from the scatter of those.
"""

import math
from dataclasses import dataclass

import numpy as np

START_TOKENS = 16  # the first tokens of a run: they fill the cache and the clocks settle
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Parts:
    """What the difference of the mean token is made of, B less A, in milliseconds; they sum to it.

    Attributes
    ----------
    total_ms : float
        Mean token of B less mean token of A.
    bytes_ms : float
        Of the typical token, what the bytes that it reads explain; 0 if that cannot be said.
    typical_ms : float
        The rest of the difference of the typical token.
    start_ms : float
        By how much more or less the first tokens differ than the typical one.
    stalls_ms : float
        The same of the tokens after them: rare slow tokens weigh here.
    """

    total_ms: float
    bytes_ms: float
    typical_ms: float
    start_ms: float
    stalls_ms: float


@dataclass(frozen=True, eq=False)
class Effect:
    """How the tokens of configuration B compare with those of A.

    Attributes
    ----------
    is_b : bool [R]
        Which runs are of B, in the order in which they ran.
    by_run : float64 [R]
        Of each run the median over its tokens of the logarithm of its time over the mean time of the
        same token in all runs.
    log_ratio : float
        Mean of B less mean of A.
    margin : float or None
        Half the width of the 95 % interval of `log_ratio`; None of one run each.
    parts : Parts
    """

    is_b: np.ndarray
    by_run: np.ndarray
    log_ratio: float
    margin: float | None
    parts: Parts

    @property
    def change(self) -> float:
        """By which fraction the typical token of B takes longer; negative: less long."""
        return math.expm1(self.log_ratio)

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of `change`; None of one run each."""
        if self.margin is None:
            return None
        return math.expm1(self.log_ratio - self.margin), math.expm1(self.log_ratio + self.margin)

    @property
    def least_shown(self) -> float | None:
        """The smallest slowdown that runs with this scatter could have shown, as a fraction."""
        return None if self.margin is None else math.expm1(self.margin)

    @property
    def is_shown(self) -> bool:
        """Whether the interval leaves out 0, so that there is a verdict."""
        return self.margin is not None and abs(self.log_ratio) > self.margin

    @property
    def verdict(self) -> str:
        """``faster`` or ``slower``: B, where that is shown; else ``no difference shown``."""
        if not self.is_shown:
            return "no difference shown"
        return "slower" if self.log_ratio > 0 else "faster"


def effect_of(
    wall_ms: np.ndarray,
    is_b: np.ndarray,
    read_mib: np.ndarray | None = None,
    b_ms_per_mib: float | None = None,
) -> Effect:
    """Compare the runs of two configurations.

    A linear drift over the runs cancels where they ran in the order A B B A.

    Parameters
    ----------
    wall_ms : float64 [R, T]
        Time of each decoded token of each run, in the order in which the runs were made.
    is_b : bool [R]
        Which runs are of configuration B.
    read_mib : float64 [R, T], optional
        What each token read.
    b_ms_per_mib : float, optional
        What a MiB costs; with it the part that bytes explain is told apart.

    Raises
    ------
    ValueError
        There is no run of A, none of B, or no token after the first 16.
    """
    if is_b.all() or not is_b.any():
        raise ValueError("an effect needs a run of each configuration")
    if wall_ms.shape[1] <= START_TOKENS:
        raise ValueError(f"an effect needs more than {START_TOKENS} tokens")
    ratio = np.log(wall_ms / wall_ms.mean(axis=0))
    by_run = np.median(ratio[:, START_TOKENS:], axis=1)
    log_ratio = float(by_run[is_b].mean() - by_run[~is_b].mean())
    return Effect(
        is_b,
        by_run,
        log_ratio,
        _margin(by_run, is_b),
        _parts(wall_ms, is_b, read_mib, b_ms_per_mib),
    )


def _margin(by_run: np.ndarray, is_b: np.ndarray) -> float | None:
    """Return half the width of the t-interval of the difference of the two means."""
    from scipy.stats import t

    freedom = len(by_run) - 2
    if freedom < 1:
        return None
    groups = by_run[is_b], by_run[~is_b]
    variance = sum(float(((group - group.mean()) ** 2).sum()) for group in groups) / freedom
    error = math.sqrt(variance * sum(1 / len(group) for group in groups))
    return float(t.ppf(0.5 + CONFIDENCE / 2, freedom)) * error


def _parts(
    wall_ms: np.ndarray,
    is_b: np.ndarray,
    read_mib: np.ndarray | None,
    b_ms_per_mib: float | None,
) -> Parts:
    difference = wall_ms[is_b].mean(axis=0) - wall_ms[~is_b].mean(axis=0)
    total = float(difference.mean())
    typical = float(np.median(difference[START_TOKENS:]))
    rest = (difference - typical) / len(difference)
    of_bytes = 0.0
    if read_mib is not None and b_ms_per_mib is not None:
        later = read_mib[:, START_TOKENS:]
        more = np.median(later[is_b].mean(axis=0) - later[~is_b].mean(axis=0))
        of_bytes = b_ms_per_mib * float(more)
    return Parts(
        total,
        of_bytes,
        typical - of_bytes,
        float(rest[:START_TOKENS].sum()),
        float(rest[START_TOKENS:].sum()),
    )
