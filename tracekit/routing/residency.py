"""The residency that the engine recorded for each lookup, and the hit rates that follow from it."""

import numpy as np

from tracekit.routing.grid import decode_order
from tracekit.routing.passes import Columns, whole_passes
from tracekit.trace import Trace, TraceError
from tracekit.trace.schema import DECODE, MISS, PREFETCHED

# More codes beside those of a trace. A dropped expert was never looked up. For an unknown one the
# trace does not say what the lookup found. A repeated one had its lookup for an earlier token.
REPEATED, DROPPED, UNKNOWN = 253, 254, 255


def why_unverified(trace: Trace) -> str | None:
    """Say why no replay can be compared with what the engine recorded; None if one can."""
    counted = any(trace.has_steps(name) for name in ("lookups", "hits"))
    if not trace.has("residency") and not counted:
        return "the trace carries neither residency nor counts"
    if trace.budget_bytes is None:
        return "the size of the engine's cache is not known"
    return None if sizes_are_known(trace) else "the sizes of the experts are not known"


def sizes_are_known(trace: Trace) -> bool:
    """Say whether the trace gives the bytes of an expert of every MoE layer."""
    try:
        return len(trace.expert_bytes) > 0
    except TraceError:
        return False


def recorded_states(trace: Trace) -> np.ndarray:
    """Return what the engine recorded for every slot, uint8 [rows, k] in the order of the routings.

    Parameters
    ----------
    trace : Trace
        One that carries residency.

    Returns
    -------
    uint8 [rows, k]
        `MISS`, `HIT`, `PREFETCHED`, `DROPPED` or `UNKNOWN`.
    """
    return _states(trace.routing(["residency", *["dropped"] * trace.has("dropped")]))


def _states(rows: Columns) -> np.ndarray:
    states = rows["residency"].copy()
    states[states > PREFETCHED] = UNKNOWN
    if "dropped" in rows:
        states[rows["dropped"] == 1] = DROPPED
    return states


def recorded_decode_states(trace: Trace, lookups_only: bool = False) -> np.ndarray:
    """Return `recorded_states` of the decode routings, in the order of `decode_rows`: by token.

    Parameters
    ----------
    trace : Trace
    lookups_only : bool
        An expert that an earlier token of the pass has asked for is `REPEATED`.
    """
    states = recorded_states(trace)
    if lookups_only:
        states = _first_only(trace, states)
    decode: np.ndarray = states[decode_order(trace)]
    return decode


def _first_only(trace: Trace, states: np.ndarray) -> np.ndarray:
    """Return `states` with `REPEATED` for an expert that its batch was asked for before."""
    rows = trace.routing(["pass", "layer", "experts"])
    return _without_repeats(rows, states, trace)


def _without_repeats(rows: Columns, states: np.ndarray, trace: Trace) -> np.ndarray:
    """Return the states of rows of whole passes with `REPEATED`, as `_first_only` does."""
    row, slot = np.nonzero(states <= PREFETCHED)
    batch = rows["pass"][row].astype(np.int64) * trace.n_layer + rows["layer"][row]
    key = batch * trace.n_expert + rows["experts"][row, slot]
    first = np.unique(key, return_index=True)[1]
    repeated = np.ones(len(row), np.bool_)
    repeated[first] = False
    states = states.copy()
    states[row[repeated], slot[repeated]] = REPEATED
    return states


def recorded_rates(trace: Trace) -> dict[str, int | float | None]:
    """Return the lookups and hit rates that the engine recorded, None without residency.

    Each distinct expert of a batch counts once, with the residency that its first routing found. A
    dropped routing is not a lookup, and neither is one of unknown residency.
    """
    if not trace.has("residency"):
        names = ("lookups", "lookups_decode", "hit_rate_cumulative", "hit_rate_decode")
        return {f"recorded_{name}": None for name in names}
    columns = ["phase", "layer", "experts", "residency", *["dropped"] * trace.has("dropped")]
    lookups = hits = lookups_decode = hits_decode = 0
    for rows in whole_passes(trace, columns):
        states = _without_repeats(rows, _states(rows), trace)
        looked_up = states <= PREFETCHED
        resident = looked_up & (states != MISS)
        decode = rows["phase"] == DECODE
        lookups += int(np.count_nonzero(looked_up))
        hits += int(np.count_nonzero(resident))
        lookups_decode += int(np.count_nonzero(looked_up[decode]))
        hits_decode += int(np.count_nonzero(resident[decode]))
    return {
        "recorded_lookups": lookups,
        "recorded_lookups_decode": lookups_decode,
        "recorded_hit_rate_cumulative": hits / lookups if lookups else None,
        "recorded_hit_rate_decode": hits_decode / lookups_decode if lookups_decode else None,
    }
