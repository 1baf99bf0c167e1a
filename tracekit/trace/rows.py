"""Where the rows of a trace come from: a table in memory, or Parquet files on disk.

In: a table, or paths. Out: tables of the columns and rows that are asked for. This module knows
nothing of what the columns mean.
"""

import copy
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace.columns import elements, empty_table, from_numpy
from tracekit.trace.errors import TraceError

# A block of a table in memory; of files, a row group is a block.
BLOCK_BYTES = 16 << 20
PROBE_BYTES = 1 << 20


def width(arrow_type: pa.DataType) -> int:
    """Return the bytes of a value of `arrow_type`, 16 where they vary."""
    if pa.types.is_fixed_size_list(arrow_type):
        return int(arrow_type.list_size) * width(arrow_type.value_type)
    return max(1, int(arrow_type.bit_width) // 8) if pa.types.is_primitive(arrow_type) else 16


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
def reading(path: Path) -> Iterator[None]:
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
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        fault = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise TraceError(
            f"{path} is cut short or damaged ({fault}); copy, record or import it again."
        ) from error


class TableRows:
    """The rows of a table in memory."""

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

    def cut(self, n_rows: int) -> "TableRows":
        """Return the first `n_rows` rows."""
        return TableRows(self._table.slice(0, n_rows))

    def read(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> pa.Table:
        """Return rows `start` to `stop` of `columns`, without a copy."""
        stop = self.n_rows if stop is None else stop
        return self._table.select(list(columns)).slice(start, stop - start)

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null."""
        if column not in self.schema.names:
            return False
        return not all(all_null(chunk) for chunk in self._table[column].chunks)


class FileRows:
    """The rows of a Parquet file, or of several that continue each other.

    A file is opened for each read and then closed, because an interrupted recording may have left
    more parts than a process may hold open. The length of a row group is learnt by reading its
    smallest column, never from its metadata: their accessors end the process if a footer is damaged.

    Parameters
    ----------
    path : Path
        Of the one file; `joined` makes rows of several.

    Raises
    ------
    TraceError
        It is missing or damaged.
    """

    def __init__(self, path: Path):
        self._paths = [path]
        with _opened(path) as file:
            self.schema = file.schema_arrow
            key = [_smallest(self.schema)]
            groups = range(file.num_row_groups)
            lengths = [file.read_row_group(group, columns=key).num_rows for group in groups]
            n_rows = file.metadata.num_rows
        self._groups = [(0, group) for group in groups]  # (index of the file, row group in it)
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self.n_rows = int(sum(lengths))
        if self.n_rows != n_rows:  # as where bytes were cut out of it
            raise TraceError(
                f"{path} is damaged: it has {n_rows} rows, and {self.n_rows} can be read; "
                "copy, record or import it again."
            )

    @classmethod
    def joined(cls, parts: Sequence["FileRows"]) -> "FileRows":
        """Return the rows of `parts`, one after the other.

        Raises
        ------
        TraceError
            They have different columns.
        """
        rows = copy.copy(parts[0])
        rows._paths = [path for part in parts for path in part._paths]
        rows._groups, ends = [], [np.empty(0, np.int64)]
        first_path = first_row = 0
        for part in parts:
            if not part.schema.equals(rows.schema):
                raise TraceError(
                    f"{part._paths[0]} has other columns than {rows._paths[0].name}; "
                    "the parts of one recording are alike: remove the foreign one."
                )
            rows._groups += [(first_path + index, group) for index, group in part._groups]
            ends.append(first_row + part._ends)
            first_path, first_row = first_path + len(part._paths), first_row + part.n_rows
        rows._ends, rows.n_rows = np.concatenate(ends), first_row
        return rows

    @property
    def group_ends(self) -> np.ndarray:
        """Where the row groups end, int64 [G]; the last end is `n_rows`."""
        inside = self._ends[self._ends < self.n_rows]
        return np.append(inside, self.n_rows) if self.n_rows else inside

    def cut(self, n_rows: int) -> "FileRows":
        """Return the first `n_rows` rows."""
        shorter = copy.copy(self)
        shorter.n_rows = n_rows
        return shorter

    def read(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> pa.Table:
        """Return rows `start` to `stop` of `columns`, reading only the row groups they are in."""
        stop = self.n_rows if stop is None else stop
        columns = list(columns)
        if start >= stop:
            return empty_table(pa.schema([self.schema.field(name) for name in columns]))
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        tables = []
        for index, groups in groupby(self._groups[first : last + 1], key=itemgetter(0)):
            with _opened(self._paths[index]) as file:
                table = file.read_row_groups([group for _, group in groups], columns=columns)
                table.validate()
                tables.append(table)
        offset = start - (int(self._ends[first - 1]) if first else 0)
        table = pa.concat_tables(tables).select(columns).slice(offset, stop - start)
        if table.num_rows != stop - start:
            raise TraceError(
                f"{self._paths[0]} is damaged: its columns {', '.join(columns)} end early; "
                "copy, record or import it again."
            )
        return table

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null; reads on until the first value."""
        if column not in self.schema.names:
            return False
        batch_rows = max(1, PROBE_BYTES // width(self.schema.field(column).type))
        for index in range(len(self._paths)):
            with _opened(self._paths[index]) as file:
                for batch in file.iter_batches(batch_rows, columns=[column]):
                    if not all_null(batch.column(0)):
                        return True
        return False


@contextmanager
def _opened(path: Path) -> Iterator[pq.ParquetFile]:
    if path.exists() and not path.is_file():  # to open a pipe would wait for a writer
        raise TraceError(f"{path} is no file; copy, record or import the trace again.")
    name = os.fsencode(path)  # it need not be valid text
    with (
        reading(path),
        pa.OSFile(name) as data,
        pq.ParquetFile(data, page_checksum_verification=True) as file,
    ):
        yield file


def _smallest(schema: pa.Schema) -> str:
    if not len(schema):
        raise pa.ArrowInvalid("it has no columns")
    return str(min(schema, key=lambda field: width(field.type)).name)


Rows = TableRows | FileRows


class WithColumn:
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
        self.n_rows, self.group_ends = rows.n_rows, rows.group_ends
        others = [other for other in rows.schema if other.name != field.name]
        self.schema = pa.schema([*others, field])

    def read(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> pa.Table:
        """Return rows `start` to `stop` of `columns`."""
        name = self._field.name
        if name not in columns:
            return self._rows.read(columns, start, stop)
        stop = self.n_rows if stop is None else stop
        values = from_numpy(self._values[start:stop], self._field.type, stop - start)
        others = [other for other in columns if other != name]
        if not others:
            return pa.Table.from_arrays([values], schema=pa.schema([self._field]))
        table = self._rows.read(others, start, stop).append_column(self._field, values)
        return table.select(list(columns))

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null."""
        return column == self._field.name or self._rows.has_values(column)
