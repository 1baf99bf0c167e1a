"""One forward evaluation: what it selected, and what it took."""

from dataclasses import dataclass

from tracekit.meter import Usage
from tracekit_engine.hook import PassCapture
from tracekit_engine.store import StoreTotals


@dataclass(frozen=True)
class Pass:
    """One forward evaluation.

    Attributes
    ----------
    tokens : list of int
    first_step : int
        Context position of the first token.
    captured : PassCapture
        What each layer selected, and what else was to be copied.
    wall_ms : float
    store : StoreTotals or None
        Lookups and reads of the expert store; None if all experts are resident.
    started : float
        When it began, by ``time.perf_counter``.
    usage : Usage
        CPU time and page faults of the process during the pass.
    available_bytes : int or None
        Memory that was available after it; None where the system does not say.
    """

    tokens: list[int]
    first_step: int
    captured: PassCapture
    wall_ms: float
    store: StoreTotals | None
    started: float
    usage: Usage
    available_bytes: int | None
