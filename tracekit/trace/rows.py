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
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace import pages
from tracekit.trace.columns import elements, empty_table, from_numpy, to_numpy
from tracekit.trace.errors import TraceError
from tracekit.trace.limits import allowed_bytes, too_large

# A block of a table in memory; of files, a row group is a block.
BLOCK_BYTES = 16 << 20
PROBE_BYTES = 1 << 20
# Rows are counted so many at a time, because a row group of a few bytes may have billions of them.
COUNTED_ROWS = 1 << 17


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
    except (pa.ArrowException, OSError, UnicodeDecodeError, pages.DamagedError) as error:
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
        self._measured: set[str] = set()
        with _opened(path) as file:
            self.schema = file.schema_arrow
            self.measure([_smallest(self.schema)])
            most = _most_rows(path, self.schema)
            n_rows = file.metadata.num_rows
            if n_rows > most:
                raise too_large(path, path.stat().st_size)
            groups = range(file.num_row_groups)
            lengths = [_count_rows(file, group, most) for group in groups]
            if any(length > most for length in lengths):
                raise too_large(path, path.stat().st_size)
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
        rows._measured = set()
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
        self.measure(columns)
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        at = first
        tables = []
        for index, members in groupby(self._groups[first : last + 1], key=itemgetter(0)):
            groups = [group for _, group in members]
            n_rows = int(self._ends[at + len(groups) - 1] - (self._ends[at - 1] if at else 0))
            at += len(groups)
            if n_rows:
                with _opened(self._paths[index]) as file:
                    tables.append(_read(file, groups, columns, n_rows))
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
        self.measure([column])
        batch_rows = max(1, PROBE_BYTES // width(self.schema.field(column).type))
        for index in range(len(self._paths)):
            with _opened(self._paths[index]) as file:
                for batch in file.iter_batches(batch_rows, columns=[column]):
                    if not all_null(batch.column(0)):
                        return True
        return False

    def measure(self, columns: Sequence[str]) -> None:
        """Refuse those of `columns` whose values vary in size and open into too much.

        Raises
        ------
        TraceError
        """
        for name in columns:
            arrow_type = self.schema.field(name).type
            if has_width(arrow_type) or name in self._measured:
                continue
            for path in self._paths:
                with reading(path):
                    n_bytes = path.stat().st_size
                    allowed = allowed_bytes(n_bytes)
                    if _opened_bytes(path, name, arrow_type, allowed) > allowed:
                        raise too_large(path, n_bytes, where=f" in column {name}")
            self._measured.add(name)


def _most_rows(path: Path, schema: pa.Schema) -> int:
    """Return how many rows a file may have, by its size and the width of its columns."""
    bytes_of_row = sum(width(field.type) for field in schema)
    return allowed_bytes(path.stat().st_size) // max(1, bytes_of_row)


def _count_rows(file: pq.ParquetFile, group: int, most: int) -> int:
    """Return the rows of a row group; counting ends once there are more than `most`."""
    count = 0
    for batch in file.iter_batches(COUNTED_ROWS, [group], [_smallest(file.schema_arrow)]):
        count += batch.num_rows
        if count > most:
            break
    return count


def _read(file: pq.ParquetFile, groups: list[int], columns: list[str], n_rows: int) -> pa.Table:
    """Read row groups of `n_rows` rows in all; no more is read, whatever the footer says."""
    batches: list[pa.RecordBatch] = []
    for batch in file.iter_batches(n_rows, groups, columns):
        batches.append(batch)
        if sum(map(len, batches)) >= n_rows:
            break
    if not batches:
        raise pa.ArrowInvalid("its row groups are empty")
    table = pa.Table.from_batches(batches)
    table.validate()
    return table


def _opened_bytes(path: Path, column: str, arrow_type: pa.DataType, allowed: int) -> int:
    """Return what a column whose values vary in size opens into; more, if that is `allowed`."""
    groups = list(pages.opened(path, column))
    stored = sum(group.plain_bytes + group.dictionary_bytes for group in groups)
    inside = arrow_type.value_type if pa.types.is_list(arrow_type) else arrow_type
    if has_width(inside):
        return max(stored, width(inside) * sum(group.values for group in groups))
    # Each value may be as long as the whole dictionary, but that is seldom so.
    most = stored + sum(group.values * group.dictionary_bytes for group in groups)
    is_flat = pa.types.is_binary(arrow_type) or pa.types.is_string(arrow_type)
    if most <= allowed or stored > allowed or not is_flat:
        return most
    return stored + _decoded_bytes(path, column)


def _decoded_bytes(path: Path, column: str) -> int:
    """Return the bytes of all values of a binary column, reading it without decoding it."""
    total = 0
    with _opened(path, read_dictionary=[column]) as file:
        for batch in file.iter_batches(COUNTED_ROWS, columns=[column]):
            values = batch.column(0)
            lengths = np.append(_lengths(values.dictionary), 0)  # null is the last
            total += int(lengths[to_numpy(values.indices, -1)].sum())
    return total


def _lengths(texts: pa.Array) -> np.ndarray:
    """Return the bytes of each value of a binary array, int64 [n]."""
    if not len(texts):
        return np.empty(0, np.int64)
    offsets = np.frombuffer(texts.buffers()[1], np.int32)
    return np.diff(offsets[texts.offset : texts.offset + len(texts) + 1]).astype(np.int64)


@contextmanager
def _opened(path: Path, **how: Any) -> Iterator[pq.ParquetFile]:
    if path.exists() and not path.is_file():  # to open a pipe would wait for a writer
        raise TraceError(f"{path} is no file; copy, record or import the trace again.")
    name = os.fsencode(path)  # it need not be valid text
    with (
        reading(path),
        pa.OSFile(name) as data,
        pq.ParquetFile(data, page_checksum_verification=True, **how) as file,
    ):
        yield file


def _smallest(schema: pa.Schema) -> str:
    if not len(schema):
        raise pa.ArrowInvalid("it has no columns")
    return str(min(schema, key=lambda field: (not has_width(field.type), width(field.type))).name)


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
