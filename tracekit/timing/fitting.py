"""The fit of a run: wall time = a + b · MiB, robustly over its decoded tokens.

In: arrays of a user, or a trace. Out: a `Fit`, which predicts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracekit.figures import MIB
from tracekit.routing.residency import sizes_are_known
from tracekit.timing.facts import RunFacts, facts_of, facts_of_trace
from tracekit.timing.huber import huber_line
from tracekit.timing.line import Line
from tracekit.timing.prediction import Prediction, predict
from tracekit.timing.spread import run_spread
from tracekit.timing.times import Times, numbers, times_of, times_of_trace
from tracekit.trace import Trace, UsageError
from tracekit.trace.build import shown

_SAME_BYTES = 0.01


@dataclass(frozen=True, eq=False)
class Fit(Line):
    """What the tokens of a run say about time, and about other runs; made by `fit`."""

    def predict(
        self,
        *,
        read_bytes: Any,
        ram_mib: float | None = None,
        mem_floor_mib: float | None = None,
        cache_mib: float | None = None,
        lanes: int | None = None,
        mode: str | None = None,
        lossy: bool | None = None,
        top_k: int | None = None,
    ) -> Prediction:
        """Predict the tokens of a run that reads other bytes. It raises nothing: it refuses.

        Parameters
        ----------
        read_bytes : array_like [N]
            Bytes that each decoded token reads.
        ram_mib : float, optional
            Memory of the device; as in the fit by default.
        mem_floor_mib : float, optional
            The least memory that is available during that run. By default it follows from the fit's
            and the two cache sizes.
        cache_mib, lanes, mode, lossy, top_k : optional
            As of `fit`, of the run that is predicted. What is not known is noted and not refused.

        Returns
        -------
        Prediction
        """
        given: dict[str, Any] = {
            "ram_mib": self.facts.ram_mib if ram_mib is None else ram_mib,
            "mem_floor_mib": mem_floor_mib,
            "cache_mib": cache_mib,
            "lanes": lanes,
            "mode": mode,
            "lossy": lossy,
            "top_k": top_k,
        }
        usable: dict[str, Any] = {}
        unusable: list[str] = []
        for name, value in given.items():
            try:
                usable |= facts_of({name: value}).given()
            except UsageError as error:
                unusable.append(str(error))
        return predict(self, read_bytes, RunFacts(**usable), unusable)

    def on_same_engine(self, *, cache_mib: float | None, lossy: bool, top_k: int) -> RunFacts:
        """Return the facts of another run by the engine and on the device of this one."""
        return replace(
            self.facts, mem_floor_mib=None, cache_mib=cache_mib, lossy=lossy, top_k=top_k
        )

    def point_ms(self, token_cycle_bytes: int) -> float:
        """Return what one point of hit rate is worth: the time of 1 % of the bytes of a token.

        Parameters
        ----------
        token_cycle_bytes : int
            Bytes that one token touches over all layers.
        """
        return 0.01 * token_cycle_bytes / MIB * self.b_ms_per_mib

    def hidden_ms(self, useful_bytes: np.ndarray) -> np.ndarray:
        """Return how much of the reading of each token may run beside computing, at most.

        Of a layer, that is what waiting for its bytes would have cost, and no more than it computes.

        Parameters
        ----------
        useful_bytes : [N, L]
            Bytes of each token and MoE layer that were read ahead and hit.

        Returns
        -------
        float64 [N]
        """
        slope = self.stall_ms_per_mib
        wait = (self.b_ms_per_mib if slope is None else slope) * useful_bytes / MIB
        return np.asarray(np.minimum(wait, max(0.0, self.a_ms) / useful_bytes.shape[1]).sum(axis=1))


def fit(
    trace: Trace | None = None,
    *,
    wall_ms: Any = None,
    read_bytes: Any = None,
    stall_ms: Any = None,
    repeated: Sequence[Any] = (),
    ram_mib: float | None = None,
    mem_floor_mib: float | None = None,
    cache_mib: float | None = None,
    lanes: int | None = None,
    mode: str | None = None,
    lossy: bool | None = None,
    top_k: int | None = None,
) -> Fit:
    """Fit the time of a token to the MiB that it reads: wall ms = a + b · MiB.

    The line is Huber's robust one (1.345; see `tracekit.timing.huber`). What is said of another
    cache size or policy is then this line at the bytes of its replay, with the residuals of the run.

    Parameters
    ----------
    trace : Trace, optional
        Its decoded tokens are fitted, and it gives the facts below that it carries.
    wall_ms, read_bytes : array_like [T], optional
        Milliseconds and bytes of each decoded token, in order; instead of a trace.
    stall_ms : array_like [T], optional
        For how many milliseconds of these it waited for reads.
    repeated : sequence of Trace or array_like [T]
        Other runs of the same configuration and tokens, or their wall times: they say how much runs
        differ. Without, 5 % is assumed.
    ram_mib : float, optional
        Memory of the device.
    mem_floor_mib : float, optional
        The least memory that was available during the run.
    cache_mib : float, optional
        Budget of the expert cache; 0: off.
    lanes : int, optional
        Threads that read.
    mode : str, optional
        How reading and computing took turns: ``serial``, ``overlap``.
    lossy : bool, optional
        Whether experts that the router selected were left out.
    top_k : int, optional
        Experts that a token used at a layer.

    Returns
    -------
    Fit

    Raises
    ------
    UsageError
        Times or bytes are missing, not finite, negative or not one a token; there are fewer than 64
        tokens; the bytes vary by less than 10 % of their mean; or a fact is out of its range.
    MissingDataError
        The trace has no times, or decodes several tokens in a pass.

    References
    ----------
    The model and its limits were found on 100 published runs of BigMoeOnEdge.
    """
    given = {
        "ram_mib": ram_mib,
        "mem_floor_mib": mem_floor_mib,
        "cache_mib": cache_mib,
        "lanes": lanes,
        "mode": mode,
        "lossy": lossy,
        "top_k": top_k,
    }
    if (trace is None) == (wall_ms is None and read_bytes is None):
        raise UsageError("fit takes either a trace, or wall_ms and read_bytes.")
    facts = facts_of(given)
    if trace is not None and not isinstance(trace, Trace):
        raise UsageError(
            f"fit takes a Trace, or arrays by name, not {shown(trace)}; open it first."
        )
    if trace is not None:
        times = times_of_trace(trace)
        facts = facts_of({**facts_of_trace(trace), **facts.given()})
    elif wall_ms is None or read_bytes is None:
        lacks = "wall_ms" if wall_ms is None else "read_bytes"
        raise UsageError(f"fit lacks {lacks}: it takes the times and the bytes of decoded tokens.")
    else:
        times = times_of("the calibrated run", wall_ms, read_bytes, stall_ms)
    runs = [times.wall_ms, *(_repetition(times, each) for each in repeated)]
    a, b = huber_line(times.read_mib, times.wall_ms)
    return Fit(
        times,
        float(a),
        float(b),
        times.wall_ms - a - b * times.read_mib,
        facts,
        run_spread(runs),
        None if trace is None else trace.facts.model,
        trace.expert_bytes if trace is not None and sizes_are_known(trace) else None,
    )


def _repetition(times: Times, run: Any) -> np.ndarray:
    """Return the wall times of a run of the same configuration.

    Raises
    ------
    UsageError
        It has other tokens, or reads other bytes.
    """
    if not isinstance(run, Trace):
        wall = numbers(run, "repeated", "a repetition")
        if len(wall) != len(times.wall_ms):
            raise UsageError(
                f"A repetition has {len(wall)} tokens, and {times.name} has {len(times.wall_ms)}; give "
                "runs of the same tokens."
            )
        return wall
    again = times_of_trace(run)
    n, n_again = len(times.wall_ms), len(again.wall_ms)
    mean, mean_again = float(times.read_mib.mean()), float(again.read_mib.mean())
    if n != n_again or abs(mean - mean_again) > _SAME_BYTES * mean:
        raise UsageError(
            f"{run.name} is no repetition of {times.name}: they decode {n_again} and {n} tokens, and "
            f"read {mean_again:.4g} and {mean:.4g} MiB a token; give runs of one configuration."
        )
    return again.wall_ms
