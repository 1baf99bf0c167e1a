"""The steps that follow from the routings, for a trace whose source recorded none.

In: the place of each routing. Out: a table with one row for each (pass, step) that routed.
"""

import numpy as np
import pyarrow as pa

from tracekit.trace.checks import Arrays
from tracekit.trace.columns import to_table
from tracekit.trace.passes import kept_steps
from tracekit.trace.schema import steps_schema

PLACE = ("turn", "pass", "step", "phase")


def steps_of(rows: Arrays) -> pa.Table:
    """Return the table of steps that the routings `rows` imply; only their place is not null.

    Parameters
    ----------
    rows : mapping
        `turn`, `pass`, `phase`, `step`, each [n], in (pass, layer, step) order.
    """
    key = rows["pass"].astype(np.int64) << 32 | rows["step"]
    at = np.unique(key, return_index=True)[1]
    steps = {name: rows[name][at] for name in PLACE}
    steps["kept"] = kept_steps(steps["turn"], steps["pass"], steps["step"])
    return to_table(steps, steps_schema(), len(at))
