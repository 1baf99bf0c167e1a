"""The columns of one file of a trace as numpy arrays, whose values are checked before they are used.

In: the rows of the file and the model's facts. Out: numpy columns. This module knows nothing of how
rows follow each other, nor of other files.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tracekit.trace import checks
from tracekit.trace.columns import NULLS, nulls, to_numpy, valid_rows
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts
from tracekit.trace.passes import blocks
from tracekit.trace.rows import Rows, all_null, width

# A value of these was computed by the model: a sentence about one names its token and layer, too.
_COMPUTED = ("logits", "gate_input")
NO_COLUMNS: Mapping[str, pa.DataType] = {}


class CheckedColumns:
    """The columns of one file.

    Parameters
    ----------
    rows : Rows
    file : str
        What sentences call the file.
    model : ModelFacts
    cached : collection of str
        Columns to keep in memory once they were read as a whole.
    checked_on_read : collection of str, optional
        Columns to check whenever they are read; None: all. `check` sets it anew.
    locate : callable, optional
        Maps (row, slot) to the words that tell a user where that is.
    may_be_absent : mapping of str to pa.DataType, optional
        Columns that are null in every row if the file does not have them.
    """

    def __init__(
        self,
        rows: Rows,
        file: str,
        model: ModelFacts,
        cached: Collection[str] = (),
        checked_on_read: Collection[str] | None = None,
        locate: checks.Locate | None = None,
        may_be_absent: Mapping[str, pa.DataType] = NO_COLUMNS,
    ):
        self.rows = rows
        self.file = file
        self.model = model
        self.locate = locate
        there = rows.schema.names
        self._absent = {name: kind for name, kind in may_be_absent.items() if name not in there}
        self._checked_on_read = frozenset(
            self.names if checked_on_read is None else checked_on_read
        )
        self._cached = frozenset(cached)
        self._cache: dict[str, np.ndarray] = {}

    @property
    def names(self) -> list[str]:
        """The names of the columns, those included that the file may lack."""
        return [*self.rows.schema.names, *self._absent]

    def where(self, first_row: int = 0) -> checks.Where:
        """Return what names the places of rows, counted from `first_row`."""
        return checks.Where(self.file, first_row, self.locate)

    def whole(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return whole columns; those of `cached` are read once, and read-only.

        Raises
        ------
        TraceError
            A value is not what it should be, or the file is damaged.
        """
        wanted = [name for name in names if name not in self._cache]
        columns = self.read(wanted) if wanted else {}
        self._cache.update((c, locked(columns[c])) for c in wanted if c in self._cached)
        return {c: self._cache[c] if c in self._cache else columns[c] for c in names}

    def read(
        self, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return rows `start` to `stop` of columns; half-precision values come as float32.

        Raises
        ------
        TraceError
            As for `whole`.
        """
        table = self.rows.read([n for n in names if n not in self._absent], start, stop)
        n_rows = (self.rows.n_rows if stop is None else stop) - start
        columns = {}
        for name in names:
            if name in self._absent:
                values = nulls(self._absent[name], n_rows, NULLS.get(name, 0))
            elif name in self._checked_on_read:
                values = self._checked(name, table[name], start)
            else:
                values = to_numpy(table[name], NULLS.get(name, 0))
            columns[name] = values.astype(np.float32) if values.dtype == np.float16 else values
        return columns

    def require(self, names: Sequence[str], trace: str, kind: str) -> None:
        """Refuse names that are not columns; `trace` and `kind` name in the sentence whose they are.

        Raises
        ------
        TraceError
        """
        for name in names:
            if name not in self.names:
                raise TraceError(
                    f"{trace} has no column {name!r} in its {kind}; it has: {', '.join(self.names)}."
                )

    def in_blocks(
        self, names: Sequence[str], phase: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Iterate over the rows in blocks that never cut a decode pass; only those of `phase`.

        The file needs the columns `pass` and `phase`.

        Raises
        ------
        TraceError
            As for `whole`.
        """
        place = self.whole(["pass", "phase"])
        for start, stop in blocks(self.rows.group_ends, place["pass"], place["phase"]):
            wanted = None if phase is None else place["phase"][start:stop] == phase
            if wanted is None or wanted.all():
                yield self.read(names, start, stop)
            elif wanted.any():
                block = self.read(names, start, stop)
                yield {name: values[wanted] for name, values in block.items()}

    def check(self, known: Collection[str], most_bytes: int) -> None:
        """Check the columns `known` that take at most `most_bytes` each, and all that are cached.

        The others of `known` are checked as they are read.

        Raises
        ------
        TraceError
        """
        sizes = {
            field.name: self.rows.n_rows * width(field.type)
            for field in self.rows.schema
            if field.name in known
        }
        small = [name for name in sizes if name in self._cached or sizes[name] <= most_bytes]
        table = self.rows.read(small)
        for name in small:
            if name in self._cached:
                self._cache[name] = locked(self._checked(name, table[name]))
            elif not all(all_null(chunk) for chunk in table[name].chunks):
                self._checked(name, table[name])
        self._checked_on_read = frozenset(sizes).difference(small)

    def _checked(self, name: str, column: pa.ChunkedArray, first_row: int = 0) -> np.ndarray:
        where = self.where(first_row)
        if name in _COMPUTED:
            where = replace(where, locate=self._place_of_token)
        valid = valid_rows(column)
        values = to_numpy(column, NULLS.get(name, 0))
        checks.check_nulls(where, name, column, valid)
        checks.check_values(checks.Column(where, name, values, valid), self.model)
        return values

    def _place_of_token(self, row: int, slot: int) -> str:
        places = self.whole(["turn", "step", "layer"])
        token = ", ".join(f"{name} {values[row]}" for name, values in places.items())
        return f"{self.where().at(row, slot)} ({token})"


def locked(values: np.ndarray) -> np.ndarray:
    """Make `values` read-only: the trace keeps them, and answers the next question with them."""
    values.flags.writeable = False
    return values
