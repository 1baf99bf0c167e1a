"""The steps of a trace that records none of its own: one row for each (turn, step) routed."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from tracekit.trace.columns import from_numpy
from tracekit.trace.schema import PREFILL, steps_schema

PLACE = ("turn", "pass", "step", "phase")


def steps_of(rows: Mapping[str, np.ndarray]) -> pa.Table:
    """Return the table of steps that the routings `rows` imply; only their place is not null.

    Parameters
    ----------
    rows : mapping
        `turn`, `pass`, `phase`, `step`, each [n], in (pass, layer, step) order.
    """
    first = np.flatnonzero(np.diff(rows["pass"], prepend=-1))  # the only step of a decode pass
    prefill = np.flatnonzero(rows["phase"] == PREFILL)
    key = rows["pass"][prefill].astype(np.int64) << 32 | rows["step"][prefill]
    prefill = prefill[np.unique(key, return_index=True)[1]]
    decode = first[rows["phase"][first] != PREFILL]
    at = np.concatenate((decode, prefill))
    at = at[np.lexsort((rows["step"][at], rows["pass"][at]))]
    schema = steps_schema()
    return pa.Table.from_arrays(
        [
            from_numpy(rows[f.name][at] if f.name in PLACE else None, f.type, len(at))
            for f in schema
        ],
        schema=schema,
    )
