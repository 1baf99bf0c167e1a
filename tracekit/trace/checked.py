"""The columns of one file of a trace as numpy arrays, whose values are checked before they are used.

In: the rows of the file and the model's facts. Out: numpy columns. This module knows nothing of how
rows follow each other, nor of other files.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import repeat

import numpy as np
import pyarrow as pa

from tracekit.trace import checks
from tracekit.trace import rows as sources
from tracekit.trace.columns import NULLS, nulls, to_numpy, valid_rows
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts
from tracekit.trace.rows import Rows, all_null, merged, width

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
        self._checked_rows: dict[str, int] = {}  # of columns checked as they are read: so many

    @property
    def names(self) -> list[str]:
        """The names of the columns, those included that the file may lack."""
        return [*self.rows.schema.names, *self._absent]

    def where(self, first_row: int = 0) -> checks.Where:
        """Return what names the places of rows, counted from `first_row`."""
        return checks.Where(self.file, first_row, self.locate)

    def holds(self, names: Sequence[str]) -> bool:
        """Say whether whole columns are in memory, so that reading them costs nothing."""
        return all(name in self._cache for name in names)

    def whole(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Return whole columns; those of `cached` are read once, and read-only.

        Raises
        ------
        TraceError
            A value is not what it should be, or the file is damaged.
        """
        wanted = [name for name in names if name not in self._cache]
        columns = self._gathered(wanted) if wanted else {}
        self._cache.update((c, locked(columns[c])) for c in wanted if c in self._cached)
        return {c: self._cache[c] if c in self._cache else columns[c] for c in names}

    def _gathered(self, names: Sequence[str]) -> dict[str, np.ndarray]:
        """Read whole columns block by block, so that no second copy of them is ever in memory."""
        spans = self.spans(names)
        if self.rows.in_memory or len(spans) == 1:
            return self.read(names)
        columns: dict[str, np.ndarray] = {}
        for (start, stop), block in zip(spans, self.read_each(names, spans), strict=True):
            for name, values in block.items():
                if name not in columns:
                    columns[name] = np.empty((self.rows.n_rows, *values.shape[1:]), values.dtype)
                columns[name][start:stop] = values
        return columns

    def spans(self, names: Sequence[str], most_rows: int | None = None) -> list[tuple[int, int]]:
        """Return the (start, stop) of blocks of row groups, at least one.

        Parameters
        ----------
        names : sequence of str
            What is read of them: a block takes about ``BLOCK_BYTES``.
        most_rows : int, optional
            About so many rows instead.
        """
        if most_rows is None:
            kinds = [self._absent.get(n) or self.rows.schema.field(n).type for n in names]
            most_rows = max(1, sources.BLOCK_BYTES // max(1, sum(map(width, kinds))))
        return merged(self.rows.group_ends, most_rows)

    def read(
        self, names: Sequence[str], start: int = 0, stop: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return rows `start` to `stop` of columns; half-precision values come as float32.

        Raises
        ------
        TraceError
            As for `whole`.
        """
        span = start, self.rows.n_rows if stop is None else stop
        return next(self.read_each(names, [span]))

    def read_each(
        self, names: Sequence[str], spans: Sequence[tuple[int, int]]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield what `read` returns of each of `spans`, with few and large reads.

        Raises
        ------
        TraceError
            As for `whole`.
        """
        stored = [n for n in names if n not in self._absent and n not in self._cache]
        tables = self.rows.read_each(stored, spans) if stored else repeat(None)
        for (start, stop), table in zip(spans, tables, strict=bool(stored)):
            columns = {}
            for name in names:
                if name in self._cache:
                    columns[name] = self._cache[name][start:stop]
                elif name in self._absent:
                    null = NULLS.get(name, 0)
                    columns[name] = nulls(self._absent[name], stop - start, null)
                else:
                    assert table is not None
                    columns[name] = self._values(name, table[name], start)
            yield columns

    def one_by_one(self, name: str) -> Iterator[np.ndarray]:
        """Yield the blocks of one column; of a column that is held, it as a whole."""
        if self.holds([name]):
            yield self._cache[name]
        else:
            for block in self.read_each([name], self.spans([name])):
                yield block[name]

    def _values(self, name: str, column: pa.ChunkedArray, start: int) -> np.ndarray:
        """Return the values of a column from row `start` on, checked if they have not been so far."""
        stop = start + len(column)
        checked = self._checked_rows.get(name, 0)
        if name in self._checked_on_read and stop > checked:
            values = self._checked(name, column, start)
            if start <= checked:
                self._checked_rows[name] = stop
        else:
            values = to_numpy(column, NULLS.get(name, 0))
        return values.astype(np.float32) if values.dtype == np.float16 else values

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

    def check(self, known: Collection[str], most_bytes: int) -> None:
        """Check the columns `known` that take at most `most_bytes` each.

        Those of `cached` are checked and kept in memory if all together take no more than that, or
        are there already. The others of `known` are checked as they are read.

        Raises
        ------
        TraceError
        """
        sizes = {
            field.name: self.rows.n_rows * width(field.type)
            for field in self.rows.schema
            if field.name in known
        }
        self._checked_on_read = frozenset(sizes)
        kept = [name for name in sizes if name in self._cached]
        if self.rows.in_memory or sum(sizes[name] for name in kept) <= most_bytes:
            self.whole(kept)
        small = [n for n in sizes if n not in self._cached and sizes[n] <= most_bytes]
        spans = self.spans(small) if small else []
        for (start, _), table in zip(spans, self.rows.read_each(small, spans), strict=True):
            for name in small:
                if not all(all_null(chunk) for chunk in table[name].chunks):
                    self._checked(name, table[name], start)
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
        place = self.read(["turn", "step", "layer"], row, row + 1)
        token = ", ".join(f"{name} {values[0]}" for name, values in place.items())
        return f"{self.where().at(row, slot)} ({token})"


def locked(values: np.ndarray) -> np.ndarray:
    """Make `values` read-only: the trace keeps them, and answers the next question with them."""
    values.flags.writeable = False
    return values
