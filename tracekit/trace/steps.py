"""The steps that follow from the routings, for a trace whose source recorded none.

In: the place of each routing. Out: a table with one row for each (turn, step) that routed.
"""

import numpy as np
import pyarrow as pa

from tracekit.trace.checks import Arrays
from tracekit.trace.columns import to_table
from tracekit.trace.schema import PREFILL, steps_schema

PLACE = ("turn", "pass", "step", "phase")


def steps_of(rows: Arrays) -> pa.Table:
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
    return to_table({name: rows[name][at] for name in PLACE}, steps_schema(), len(at))
