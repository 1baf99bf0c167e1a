"""The residency that the engine recorded for each lookup, and the hit rates that follow from it."""

import numpy as np

from tracekit.trace import Trace
from tracekit.trace.schema import DECODE, MISS, PREFETCHED

# Two more codes beside those of a trace. A dropped expert was never looked up. For an unknown one
# the trace does not say what the lookup found.
DROPPED, UNKNOWN = 254, 255


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
    states = trace.routing(["residency"])["residency"].copy()
    states[states > PREFETCHED] = UNKNOWN
    if trace.has("dropped"):
        states[trace.routing(["dropped"])["dropped"] == 1] = DROPPED
    return states


def recorded_decode_states(trace: Trace) -> np.ndarray:
    """Return `recorded_states` of the decode routings only."""
    decode: np.ndarray = recorded_states(trace)[trace.routing(["phase"])["phase"] == DECODE]
    return decode


def recorded_rates(trace: Trace) -> dict[str, int | float | None]:
    """Return the lookups and hit rates that the engine recorded, None without residency.

    Each distinct expert of a batch counts once, with the residency that its first routing found. A
    dropped routing is not a lookup, and neither is one of unknown residency.
    """
    if not trace.has("residency"):
        names = ("lookups", "lookups_decode", "hit_rate_cumulative", "hit_rate_decode")
        return {f"recorded_{name}": None for name in names}
    rows = trace.routing(["pass", "phase", "layer", "experts"])
    states = recorded_states(trace)
    looked_up = states <= PREFETCHED
    resident = looked_up & (states != MISS)
    decode = rows["phase"] == DECODE
    lookups_decode = int(np.count_nonzero(looked_up[decode]))
    hits_decode = int(np.count_nonzero(resident[decode]))
    # All experts of a decoded token are distinct; only a prefill asks for one again.
    row, slot = np.nonzero(looked_up & ~decode[:, None])
    key = rows["pass"][row].astype(np.int64) * trace.n_layer + rows["layer"][row]
    key = key * trace.n_expert + rows["experts"][row, slot]
    first = np.unique(key, return_index=True)[1]
    lookups = lookups_decode + len(first)
    hits = hits_decode + int(np.count_nonzero(resident[row[first], slot[first]]))
    return {
        "recorded_lookups": lookups,
        "recorded_lookups_decode": lookups_decode,
        "recorded_hit_rate_cumulative": hits / lookups if lookups else None,
        "recorded_hit_rate_decode": hits_decode / lookups_decode if lookups_decode else None,
    }
