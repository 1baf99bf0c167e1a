"""The steps of a trace: which of them stayed, and those that follow from the routings.

In: the columns of ``steps.parquet``, or the places of routings where a source recorded no steps. Out:
columns, counts, a table with one row for each (pass, step).
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa

from tracekit.trace.checked import CheckedColumns, locked
from tracekit.trace.checks import Arrays
from tracekit.trace.columns import to_table
from tracekit.trace.passes import kept_steps, pass_starts
from tracekit.trace.schema import DECODE, steps_schema

PLACE = ("turn", "pass", "step", "phase")


class StepTable:
    """The steps of a trace.

    Parameters
    ----------
    columns : CheckedColumns
        Of ``steps.parquet``; they keep `CACHED` in memory.
    """

    # Small columns that several questions need.
    CACHED = (*PLACE, "kept")

    def __init__(self, columns: CheckedColumns):
        self.columns = columns

    @property
    def places(self) -> dict[str, np.ndarray]:
        """`turn`, `pass`, `step` and `phase` of each step."""
        return self.columns.whole(PLACE)

    @cached_property
    def kept(self) -> np.ndarray:
        """Which steps stayed, bool [n].

        False of a drafted token that was rejected and of a prompt that was cancelled: the recorder
        says so, or a later pass of the turn begins at that step or before it.
        """
        places = self.columns.whole(["turn", "pass", "step"])
        kept = kept_steps(places["turn"], places["pass"], places["step"])
        if "kept" in self.columns.names:  # since schema version 2
            kept &= self.columns.whole(["kept"])["kept"]
        return locked(kept)

    @cached_property
    def n_decoded(self) -> int:
        """How many decoded tokens stayed."""
        return int(np.count_nonzero((self.columns.whole(["phase"])["phase"] == DECODE) & self.kept))

    @cached_property
    def most_decoded_at_once(self) -> int:
        """The most tokens of one decode pass; 0 without one."""
        steps = self.columns.whole(["pass", "phase"])
        passes = steps["pass"][steps["phase"] == DECODE]
        counts = np.diff(np.append(pass_starts(passes), len(passes)))
        return int(counts.max(initial=0))

    def read(
        self, names: Sequence[str], start: int, stop: int | None, trace: str
    ) -> dict[str, np.ndarray]:
        """Return rows `start` to `stop` of columns; `kept` is that of this table.

        Raises
        ------
        TraceError
            A column is not in the file, or cannot be read; the sentence calls the trace `trace`.
        """
        of_file = [name for name in names if name != "kept"]
        self.columns.require(of_file, trace, "steps")
        read = self.columns.read(of_file, start, stop)
        return {name: self.kept[start:stop] if name == "kept" else read[name] for name in names}


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
