"""The line through the times of a run, and what is known of the run beside it.

In: what `tracekit.timing.fit` found. Out: figures of the run itself. Nothing here predicts another.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracekit.figures import joined
from tracekit.timing.facts import RunFacts
from tracekit.timing.huber import huber_line
from tracekit.timing.spread import Draws, RunSpread, draws_of, evenly
from tracekit.timing.times import ADVISED, Times
from tracekit.trace.facts import CAPTURES, ModelFacts

_SLOWEST = 0.95  # quantile up to which tokens count for R²
_LEAST_R2 = 0.1
_MANY_FAULTING = 0.05


@dataclass(frozen=True, eq=False)
class Line:
    """What the tokens of a run say about time: a + b · MiB.

    Attributes
    ----------
    times : Times
    a_ms : float
        The time of a token that reads nothing.
    b_ms_per_mib : float
        What each MiB adds.
    residuals : float64 [T]
        By how many milliseconds each token took longer than the line says.
    facts : RunFacts
    spread : RunSpread
        Between runs of this configuration.
    model : ModelFacts or None
        Of the trace that it was fitted to.
    expert_bytes : int64 [L] or None
        Of its MoE layers, where the trace gives them.
    """

    times: Times
    a_ms: float
    b_ms_per_mib: float
    residuals: np.ndarray
    facts: RunFacts
    spread: RunSpread
    model: ModelFacts | None = None
    expert_bytes: np.ndarray | None = None

    @property
    def name(self) -> str:
        """What sentences call the run."""
        return self.times.name

    @property
    def read_mib(self) -> np.ndarray:
        """MiB that each token read, float64 [T]."""
        return self.times.read_mib

    @property
    def typical_ms(self) -> float:
        """The median token of the run itself."""
        return float(np.median(self.times.wall_ms))

    @property
    def excess_ms(self) -> float:
        """By how much the mean of the residuals is above their median."""
        return float(self.residuals.mean() - np.median(self.residuals))

    @property
    def ceiling_tok_s(self) -> float | None:
        """Tokens a second that no cache can exceed: none is read. None if a is not above 0."""
        return 1000 / self.a_ms if self.a_ms > 0 else None

    @property
    def flash_mib_s(self) -> float | None:
        """At which rate reading makes a token longer; None if b is not above 0."""
        return 1000 / self.b_ms_per_mib if self.b_ms_per_mib > 0 else None

    @cached_property
    def r2(self) -> float:
        """Which share of the variance of the times bytes explain; the slowest 5 % are left out."""
        wall = self.times.wall_ms
        kept = wall <= np.quantile(wall, _SLOWEST)
        x, y = self.read_mib[kept], wall[kept]
        if x.std() == 0 or y.std() == 0:
            return 0.0
        return float(np.corrcoef(x, y)[0, 1] ** 2)

    @property
    def refusal(self) -> str | None:
        """Why the fit says nothing of any run, None if it does."""
        if not self.b_ms_per_mib > 0:
            return (
                f"In {self.name} tokens that read more took no longer: what a byte costs cannot be "
                "told."
            )
        if self.r2 < _LEAST_R2:
            return (
                f"Bytes explain {100 * self.r2:.0f} % of how the tokens of {self.name} differ in time, "
                "less than the 10 % that a prediction needs (its slowest 5 % left out)."
            )
        return None

    @cached_property
    def draws(self) -> Draws:
        """Fits of drawn tokens."""
        return draws_of(self.times, (self.a_ms, self.b_ms_per_mib))

    @cached_property
    def stall_ms_per_mib(self) -> float | None:
        """What each MiB adds to the time that a token waits for reads; None if that is not known."""
        if self.times.wait_ms is None:
            return None
        _, slope = huber_line(self.read_mib, self.times.wait_ms)
        return max(0.0, float(slope))

    @cached_property
    def usual_mib(self) -> tuple[float, float]:
        """The 2nd and 98th percentile of what a token reads."""
        low, high = np.quantile(self.read_mib, [0.02, 0.98])
        return float(low), float(high)

    @cached_property
    def some_residuals(self) -> np.ndarray:
        """Residuals in even steps of rank, so few that all sums with them stay quick."""
        return evenly(self.residuals)

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any prediction needs to know."""
        return tuple(self._notes())

    def _notes(self) -> Iterator[str]:
        n = len(self.times.wall_ms)
        if n < ADVISED:
            yield (
                f"{self.name} has {n} decoded tokens; {ADVISED} or more are better: from 64, the cost of "
                "a MiB was off by 4 % in the median, and by 17 % in one run of ten."
            )
        faulting = self.times.faulting_share
        if faulting is not None and faulting > _MANY_FAULTING:
            yield (
                f"In {100 * faulting:.0f} % of the tokens of {self.name} a page had to be read from "
                "storage (major faults), as where memory is short; what that took is part of their times."
            )
        if self.facts.captured:
            yield (
                f"{joined([CAPTURES[name] for name in self.facts.captured]).capitalize()} were copied out "
                f"of the model while {self.name} was recorded; what that took is part of its times."
            )
