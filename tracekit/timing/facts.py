"""What was known of a run beside its times: what must be alike in two runs, and the memory it had.

In: keywords of a user, or a trace. Out: a frozen dataclass. Nothing here knows a fit.
"""

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tracekit.figures import MIB
from tracekit.trace import Trace, UsageError
from tracekit.trace.build import shown


@dataclass(frozen=True)
class RunFacts:
    """The facts of a run that decide whether its times say something about another run.

    Attributes
    ----------
    ram_mib : float or None
        Memory of the device.
    mem_floor_mib : float or None
        The least memory that was available during the run.
    cache_mib : float or None
        Budget of the expert cache; 0: the cache was off.
    lanes : int or None
        Threads that read.
    mode : str or None
        How reading and computing took turns, such as ``serial`` or ``overlap``.
    lossy : bool or None
        Whether experts that the router selected were left out.
    top_k : int or None
        Experts that a token used at a layer.
    captured : tuple of str or None
        What was copied out of the model while it was timed.

    None: not known.
    """

    ram_mib: float | None = None
    mem_floor_mib: float | None = None
    cache_mib: float | None = None
    lanes: int | None = None
    mode: str | None = None
    lossy: bool | None = None
    top_k: int | None = None
    captured: tuple[str, ...] | None = None

    def given(self) -> dict[str, Any]:
        """Return what is known, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


NAMES = tuple(each.name for each in fields(RunFacts))
_LEAST = {"ram_mib": 0.0, "mem_floor_mib": 0.0, "cache_mib": 0.0, "lanes": 0.0, "top_k": 1.0}


def facts_of(given: dict[str, Any]) -> RunFacts:
    """Return the facts that a user gave; None and NaN are not known.

    Raises
    ------
    UsageError
        A value is of another kind, or out of its range.
    """
    return RunFacts(**{name: _checked(name, value) for name, value in given.items()})


def _checked(name: str, value: Any) -> Any:
    if name == "captured":
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if name == "mode":
        if not isinstance(value, str):
            raise UsageError(
                f"mode takes a word such as 'serial' or 'overlap', not {shown(value)}."
            )
        return value
    if name == "lossy":
        if not isinstance(value, (bool, np.bool_, int, float)) or value not in (0, 1):
            raise UsageError(f"lossy takes True or False, not {shown(value)}.")
        return bool(value)
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{name} takes a number, not {shown(value)}.") from error
    if math.isnan(number):
        return None
    if not _LEAST[name] <= number < math.inf:
        raise UsageError(f"{name} takes a number of {_LEAST[name]:g} or more, not {shown(value)}.")
    whole = name in ("lanes", "top_k")
    if whole and number != int(number):
        raise UsageError(f"{name} takes a whole number, not {shown(value)}.")
    return int(number) if whole else number


def facts_of_trace(trace: Trace) -> dict[str, Any]:
    """Return what a trace says of its run, by the names of `RunFacts`.

    A recorder or importer may have left ``ram_mib``, ``mem_floor_mib`` and ``mode`` among its notes.
    The floor is else the least memory that was available after a pass.
    """
    engine, notes = trace.facts.engine, trace.facts.notes
    known: dict[str, Any] = {"top_k": trace.top_k}
    if engine is not None:
        known["lossy"] = False if engine.name == "tracekit" else None  # it leaves nothing out
        known["cache_mib"] = None if engine.cache_bytes is None else engine.cache_bytes / MIB
        known["lanes"] = engine.io_threads
    if trace.has("dropped"):
        known["lossy"] = bool((trace.routing(["dropped"])["dropped"] == 1).any())
    known["mem_floor_mib"] = mem_floor_mib(trace)
    known |= {name: notes[name] for name in ("ram_mib", "mem_floor_mib", "mode") if name in notes}
    if trace.facts.captured is not None:
        known["captured"] = tuple(trace.facts.captured)
    return known


def mem_floor_mib(trace: Trace) -> float | None:
    """Return the least memory that was available after a pass; None where the trace does not say."""
    if not trace.has_steps("mem_available_bytes"):
        return None
    available = trace.steps(["mem_available_bytes"])["mem_available_bytes"]
    return float(available[available >= 0].min() / MIB)
