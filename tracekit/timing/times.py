"""The times of a run, token by token: checked arrays of a user, or the decoded tokens of a trace.

In: arrays or a trace. Out: `Times`. Nothing here knows what is made of them.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tracekit.figures import MIB, counted
from tracekit.trace import Trace, UsageError
from tracekit.trace.errors import MissingDataError
from tracekit.trace.schema import DECODE

FEWEST = 64
_COLUMNS = ("wall_ms", "read_bytes", "io_ms", "stall_ms", "major_faults")  # read at once
ADVISED = 128
# Under this share of their mean, bytes say nothing about the time that a byte takes.
_LEAST_VARIATION = 0.1


@dataclass(frozen=True, eq=False)
class Times:
    """Times and bytes of the decoded tokens of a run, in their order.

    Attributes
    ----------
    name : str
        What sentences call the run.
    wall_ms : float64 [T]
    read_mib : float64 [T]
    wait_ms : float64 [T] or None
        For how long each token waited for reads; None where the run does not say.
    faulting_share : float or None
        Of which share of the tokens a page had to be read from storage (a major fault); None where the
        run does not say.
    """

    name: str
    wall_ms: np.ndarray
    read_mib: np.ndarray
    wait_ms: np.ndarray | None = None
    faulting_share: float | None = None


def times_of(name: str, wall_ms: Any, read_bytes: Any, wait_ms: Any = None) -> Times:
    """Check the times and bytes of a run.

    Parameters
    ----------
    name : str
    wall_ms, read_bytes, wait_ms : array_like [T]

    Raises
    ------
    UsageError
        They are no numbers, not of one length, not finite or negative; or there are too few of them,
        or the bytes hardly vary.
    """
    wall = numbers(wall_ms, "wall_ms", name)
    read = numbers(read_bytes, "read_bytes", name)
    if len(wall) != len(read):
        raise UsageError(
            f"{name} has {len(wall)} wall_ms and {len(read)} read_bytes; give one of each for every "
            "decoded token."
        )
    if not len(wall):
        raise UsageError(f"{name} has no times: wall_ms is empty; record a run with times.")
    if len(wall) < FEWEST:
        raise UsageError(
            f"{name} has {counted(len(wall), 'decoded token')} with a time, and a fit needs at least "
            f"{FEWEST}; record a longer run."
        )
    if not wall.any():
        raise UsageError(f"The wall_ms of {name} are all 0; give the time that each token took.")
    if read.std() < _LEAST_VARIATION * read.mean() or not read.any():
        raise UsageError(
            f"The bytes that a token of {name} reads vary by less than 10 % of their mean, as with the "
            "cache off or everything resident: what a byte costs cannot be told; take a run whose "
            "cache hits some lookups and misses others."
        )
    wait = None if wait_ms is None else numbers(wait_ms, "stall_ms", name)
    return Times(name, wall, read / MIB, wait)


def numbers(values: Any, what: str, name: str) -> np.ndarray:
    """Return `values` as float64 [T].

    Raises
    ------
    UsageError
        A value is no number, not finite or negative, or the array has several axes.
    """
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise UsageError(f"{what} of {name} takes one number for each decoded token.") from error
    if array.ndim != 1:
        raise UsageError(
            f"{what} of {name} has {array.ndim} axes; give one number for each decoded token."
        )
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        at = int(wrong.argmax())
        raise UsageError(
            f"{what} of {name} is {array[at]:g} at decoded token {at + 1}; it takes finite numbers "
            "that are not negative."
        )
    return array


def times_of_trace(trace: Trace) -> Times:
    """Return the times of the decoded tokens of a trace.

    Where no token stalled, as where reading and computing take turns, the wait is that of reading.

    Raises
    ------
    MissingDataError
        The trace lacks times or bytes, or its decode passes have several tokens.
    UsageError
        As for `times_of`.
    """
    columns = trace.steps(["phase", *_COLUMNS])
    is_given = {
        "wall_ms": not np.isnan(columns["wall_ms"]).all(),
        "read_bytes": bool((columns["read_bytes"] >= 0).any()),
    }
    for column, has_values in is_given.items():
        if not has_values:
            raise MissingDataError(
                f"{trace.name} has no {column} of its tokens, so nothing can be said about time; "
                "record it with tracekit, import it with --metrics, or name a recording of the same "
                "model that has them with --calibrate."
            )
    if trace.most_decoded_at_once > 1:
        raise MissingDataError(
            f"{trace.name} decodes up to {trace.most_decoded_at_once} tokens in one pass, so the time "
            "of a token is not known; take a recording without drafted tokens."
        )
    decoded = (columns["phase"] == DECODE) & trace.kept
    wall, read = columns["wall_ms"][decoded], columns["read_bytes"][decoded]
    lacks = np.isnan(wall) | (read < 0)
    if lacks.any():
        raise MissingDataError(
            f"{trace.name} lacks the time or the bytes of {int(lacks.sum())} of its {len(wall)} decoded "
            "tokens; record or import it again with those of all tokens."
        )
    stalled, read_for = columns["stall_ms"][decoded], columns["io_ms"][decoded]
    wait = stalled if np.nan_to_num(stalled).any() else read_for
    has_wait = len(wait) and bool((np.isfinite(wait) & (wait >= 0)).all()) and bool(wait.any())
    times = times_of(trace.name, wall, read, wait if has_wait else None)
    faults = columns["major_faults"][decoded]
    return (
        times if (faults < 0).any() else replace(times, faulting_share=float((faults > 0).mean()))
    )
