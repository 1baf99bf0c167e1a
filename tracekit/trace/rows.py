"""Where the rows of a trace come from: what a table in memory and Parquet files have in common.

In: a table. Out: tables of the columns and rows that are asked for. This module knows nothing of what
the columns mean; ``file_rows`` has the rows of files.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat

import numpy as np
import pyarrow as pa

from tracekit.trace import pages
from tracekit.trace.bytes_of import Bytes
from tracekit.trace.columns import elements, from_numpy
from tracekit.trace.errors import TraceError

# A block of a table in memory; of files, a row group is a block.
BLOCK_BYTES = 16 << 20


def width(arrow_type: pa.DataType) -> int:
    """Return the bytes of a value of `arrow_type`, 16 where they vary."""
    if pa.types.is_fixed_size_list(arrow_type):
        return int(arrow_type.list_size) * width(arrow_type.value_type)
    return max(1, int(arrow_type.bit_width) // 8) if has_width(arrow_type) else 16


def has_width(arrow_type: pa.DataType) -> bool:
    """Say whether all values of `arrow_type` take the same bytes."""
    if pa.types.is_fixed_size_list(arrow_type):
        return has_width(arrow_type.value_type)
    return bool(pa.types.is_primitive(arrow_type) or pa.types.is_fixed_size_binary(arrow_type))


def all_null(array: pa.Array) -> bool:
    """Say whether every value is null; a list is null if all its elements are."""
    if array.null_count == len(array):
        return True
    if not pa.types.is_fixed_size_list(array.type):
        return False
    # A null list may have elements that are not null; flatten() leaves them out.
    inside = array.flatten() if array.null_count else elements(array)
    return bool(inside.null_count == len(inside))


@contextmanager
def reading(path: Bytes) -> Iterator[None]:
    """Turn an error while reading `path` into one sentence.

    Raises
    ------
    TraceError
    """
    try:
        yield
    except FileNotFoundError as error:
        raise TraceError(
            f"{path} is missing; a trace is complete in itself: copy the whole directory again."
        ) from error
    except PermissionError as error:
        raise TraceError(f"{path} may not be read; give yourself read permission.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError, pages.DamagedError) as error:
        fault = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise TraceError(
            f"{path} is cut short or damaged ({fault}); copy, record or import it again."
        ) from error


def merged(ends: np.ndarray, most_rows: int) -> list[tuple[int, int]]:
    """Return the (start, stop) of blocks that end where row groups do; of no rows, one block.

    Parameters
    ----------
    ends : int [G]
        Where the row groups end.
    most_rows : int
        A block has no more, unless a single row group does.
    """
    blocks: list[tuple[int, int]] = []
    start = stop = 0
    for end in ends.tolist():
        if end - start > most_rows and stop > start:
            blocks.append((start, stop))
            start = stop
        stop = end
    return [*blocks, (start, stop)]


class Rows:
    """The rows of a table, wherever it is.

    Attributes
    ----------
    schema : pa.Schema
    n_rows : int
    in_memory : bool
        Whether reading whole columns takes no more memory.
    n_bytes : int or None
        Size of the one file that holds these rows and no more.
    """

    schema: pa.Schema
    n_rows: int
    in_memory: bool = False
    n_bytes: int | None = None

    @property
    def group_ends(self) -> np.ndarray:
        """Where blocks end that are read as a whole, int64 [G]; the last end is `n_rows`."""
        raise NotImplementedError

    def spans(self, columns: Sequence[str], most_rows: int | None = None) -> list[tuple[int, int]]:
        """Return the (start, stop) of blocks of row groups, at least one.

        Parameters
        ----------
        columns : sequence of str
            What is read of them: a block takes about ``BLOCK_BYTES``.
        most_rows : int, optional
            About so many rows instead.
        """
        if most_rows is None:
            bytes_of_row = sum(width(self.schema.field(name).type) for name in columns)
            most_rows = max(1, BLOCK_BYTES // max(1, bytes_of_row))
        return merged(self.group_ends, most_rows)

    def read_each(
        self, columns: Sequence[str], spans: Iterable[tuple[int, int]]
    ) -> Iterator[pa.Table]:
        """Yield what `read` returns of the (start, stop) of each of `spans`."""
        raise NotImplementedError

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null."""
        raise NotImplementedError

    def cut(self, n_rows: int) -> "Rows":
        """Return the first `n_rows` rows."""
        raise NotImplementedError

    def read(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> pa.Table:
        """Return rows `start` to `stop` of `columns`, reading only the row groups they are in."""
        return next(self.read_each(columns, [(start, self.n_rows if stop is None else stop)]))


class TableRows(Rows):
    """The rows of a table in memory."""

    in_memory = True

    def __init__(self, table: pa.Table):
        self._table = table
        self.schema = table.schema
        self.n_rows = table.num_rows

    @property
    def group_ends(self) -> np.ndarray:
        """Where blocks of at most ``BLOCK_BYTES`` end, int64 [G]."""
        if self.n_rows == 0:
            return np.empty(0, np.int64)
        step = max(1, BLOCK_BYTES * self.n_rows // max(1, self._table.nbytes))
        return np.append(np.arange(step, self.n_rows, step), self.n_rows).astype(np.int64)

    def cut(self, n_rows: int) -> Rows:
        """Return the first `n_rows` rows."""
        return TableRows(self._table.slice(0, n_rows))

    def read_each(
        self, columns: Sequence[str], spans: Iterable[tuple[int, int]]
    ) -> Iterator[pa.Table]:
        """Yield the rows of each of `spans`, without a copy."""
        table = self._table.select(list(columns))
        for start, stop in spans:
            yield table.slice(start, stop - start)

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null."""
        if column not in self.schema.names:
            return False
        return not all(all_null(chunk) for chunk in self._table[column].chunks)


class WithColumn(Rows):
    """The rows of another table, with one column put in place of its own or added at the end.

    Parameters
    ----------
    rows : Rows
    field : pa.Field
    values : numpy.ndarray
        [n_rows], of the field's type.
    """

    def __init__(self, rows: Rows, field: pa.Field, values: np.ndarray):
        self._rows, self._field, self._values = rows, field, values
        self.n_rows = rows.n_rows
        others = [other for other in rows.schema if other.name != field.name]
        self.schema = pa.schema([*others, field])

    @property
    def group_ends(self) -> np.ndarray:
        """Where the row groups of the other table end."""
        return self._rows.group_ends

    def read_each(
        self, columns: Sequence[str], spans: Iterable[tuple[int, int]]
    ) -> Iterator[pa.Table]:
        """Yield the rows of each of `spans`."""
        name, spans = self._field.name, list(spans)
        others = [other for other in columns if other != name]
        tables = self._rows.read_each(others, spans) if others else repeat(None)
        for (start, stop), table in zip(spans, tables, strict=bool(others)):
            if name not in columns:
                yield table
                continue
            values = from_numpy(self._values[start:stop], self._field.type, stop - start)
            if table is None:
                yield pa.Table.from_arrays([values], schema=pa.schema([self._field]))
            else:
                yield table.append_column(self._field, values).select(list(columns))

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null."""
        return column == self._field.name or self._rows.has_values(column)


class SpanRows(Rows):
    """Some stretches of the rows of another table, one after the other; nothing is copied until it is read.

    Parameters
    ----------
    rows : Rows
    spans : sequence of (int, int)
        Start and stop of each stretch, ascending; none is empty.
    """

    def __init__(self, rows: Rows, spans: Sequence[tuple[int, int]]):
        self._rows = rows
        self._starts = np.array([start for start, _ in spans], np.int64)
        stops = np.array([stop for _, stop in spans], np.int64)
        self._ends = np.cumsum(stops - self._starts)
        self.schema = rows.schema
        self.n_rows = int(self._ends[-1]) if len(self._ends) else 0
        self.in_memory = rows.in_memory

    @property
    def group_ends(self) -> np.ndarray:
        """Where the stretches end, and the row groups inside them."""
        firsts = self._ends - np.diff(self._ends, prepend=0)
        inside = [
            ends[(ends > start) & (ends < start + stop - first)] - start + first
            for ends in [self._rows.group_ends]
            for start, first, stop in zip(self._starts, firsts, self._ends, strict=True)
        ]
        return np.unique(np.concatenate([*inside, self._ends])).astype(np.int64)

    def read_each(
        self, columns: Sequence[str], spans: Iterable[tuple[int, int]]
    ) -> Iterator[pa.Table]:
        """Yield the rows of each of `spans`."""
        for start, stop in spans:
            parts = list(self._rows.read_each(columns, self._of_other(start, stop)))
            yield pa.concat_tables(parts)

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null in the whole of the other table."""
        return self._rows.has_values(column)

    def _of_other(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Return the stretches of the other table that rows `start` to `stop` are; at least one."""
        found = []
        first = 0
        for place, end in zip(self._starts.tolist(), self._ends.tolist(), strict=True):
            low, high = max(start, first), min(stop, end)
            if low < high:
                found.append((place + low - first, place + high - first))
            first = end
        return found or [(0, 0)]
