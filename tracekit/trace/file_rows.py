"""The rows of Parquet files on disk, read with few and large requests.

In: paths. Out: tables of the columns and rows that are asked for. What a file opens into is compared
with its size before anything is read. This module knows nothing of what the columns mean.
"""

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace import pages
from tracekit.trace.bytes_of import Bytes
from tracekit.trace.columns import empty_table, to_numpy
from tracekit.trace.errors import TraceError
from tracekit.trace.limits import allowed_bytes, too_large
from tracekit.trace.rows import Rows, all_null, has_width, reading, width

PROBE_BYTES = 1 << 20
# Values of varying size are counted so many at a time.
COUNTED_ROWS = 1 << 17
MOST_ROWS = 1 << 62


@dataclass(frozen=True)
class _Known:
    """A file whose footer was parsed: what it said, and how the file was then."""

    path: Bytes
    footer: pq.FileMetaData
    size_and_time: tuple[int, int]

    @contextmanager
    def reopened(self) -> Iterator[pq.ParquetFile]:
        """Open it again; refuse another file in its place, of which the footer says nothing true."""
        with _opened(self.path, metadata=self.footer) as file:
            if _size_and_time(self.path) != self.size_and_time:
                raise TraceError(
                    f"{self.path} was changed while it was read; read the trace again."
                )
            yield file


class FileRows(Rows):
    """The rows of a Parquet file, or of several that continue each other.

    One file is open at a time, because an interrupted recording may have left more parts than a
    process may hold open. Its footer is parsed once. Lengths of row groups are what the footer says,
    read without pyarrow's accessors, which end the process if a footer is damaged; where a column is
    shorter, reading it fails.

    Parameters
    ----------
    path : Path or RemoteBytes
        Of the one file; `joined` makes rows of several.

    Attributes
    ----------
    n_bytes : int or None
        Size of the file; None of several, or of a part of its rows.

    Raises
    ------
    TraceError
        It is missing or damaged.
    """

    def __init__(self, path: Bytes):
        self._measured: set[str] = set()
        self._null: dict[Bytes, frozenset[str]] = {}
        before = _size_and_time(path)
        with _opened(path) as file:
            self.schema = file.schema_arrow
            self.n_bytes = path.stat().st_size
            self._files = [_Known(path, file.metadata, before)]
            self.measure([_smallest(self.schema)])
            n_rows = file.metadata.num_rows
            if n_rows > _most_rows(self.n_bytes, self.schema):
                raise too_large(path, self.n_bytes)
            groups = range(file.num_row_groups)
            lengths = [_length(file, group) for group in groups]
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
        if len(parts) == 1:
            return parts[0]
        rows = copy.copy(parts[0])
        rows._files = [file for part in parts for file in part._files]
        rows._measured, rows.n_bytes = set(), None
        rows._groups, ends = [], [np.empty(0, np.int64)]
        first_file = first_row = 0
        for part in parts:
            if not part.schema.equals(rows.schema):
                raise TraceError(
                    f"{part._files[0].path} has other columns than {rows._files[0].path.name}; "
                    "the parts of one recording are alike: remove the foreign one."
                )
            rows._groups += [(first_file + index, group) for index, group in part._groups]
            ends.append(first_row + part._ends)
            first_file, first_row = first_file + len(part._files), first_row + part.n_rows
        rows._ends, rows.n_rows = np.concatenate(ends), first_row
        return rows

    @property
    def group_ends(self) -> np.ndarray:
        """Where the row groups end, int64 [G]; the last end is `n_rows`."""
        inside = self._ends[self._ends < self.n_rows]
        return np.append(inside, self.n_rows) if self.n_rows else inside

    def cut(self, n_rows: int) -> Rows:
        """Return the first `n_rows` rows."""
        shorter = copy.copy(self)
        shorter.n_rows, shorter.n_bytes = n_rows, None
        return shorter

    def read_each(
        self, columns: Sequence[str], spans: Iterable[tuple[int, int]]
    ) -> Iterator[pa.Table]:
        """Yield the rows of each of `spans`; a file stays open from one to the next."""
        columns = list(columns)
        self.measure(columns)
        with _OneOpen(self._files) as files:
            for start, stop in spans:
                yield self._between(files, columns, start, stop)

    def _between(self, files: "_OneOpen", columns: list[str], start: int, stop: int) -> pa.Table:
        if start >= stop:
            return empty_table(pa.schema([self.schema.field(name) for name in columns]))
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        at = first
        tables = []
        for index, members in groupby(self._groups[first : last + 1], key=itemgetter(0)):
            groups = [group for _, group in members]
            n_rows = int(self._ends[at + len(groups) - 1] - (self._ends[at - 1] if at else 0))
            at += len(groups)
            if n_rows:
                tables.append(files.read(index, groups, columns, n_rows))
        offset = start - (int(self._ends[first - 1]) if first else 0)
        table = pa.concat_tables(tables).select(columns).slice(offset, stop - start)
        if table.num_rows != stop - start:
            raise TraceError(
                f"{self._files[0].path} is damaged: its columns {', '.join(columns)} end early; "
                "copy, record or import it again."
            )
        return table

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null.

        Its first values are read; if they are null, the statistics of the file say whether all are,
        and where it has none, reading goes on.
        """
        if column not in self.schema.names:
            return False
        self.measure([column])
        batch_rows = max(1, PROBE_BYTES // width(self.schema.field(column).type))
        for known in self._files:
            with known.reopened() as file:
                for number, batch in enumerate(file.iter_batches(batch_rows, columns=[column])):
                    if not all_null(batch.column(0)):
                        return True
                    if number == 0 and column in self._null_columns(known.path):
                        break
        return False

    def _null_columns(self, path: Bytes) -> frozenset[str]:
        if path not in self._null:
            with reading(path):
                self._null[path] = pages.null_columns(path)
        return self._null[path]

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
            for path in (file.path for file in self._files):
                with reading(path):
                    n_bytes = path.stat().st_size
                    allowed = allowed_bytes(n_bytes)
                    if _opened_bytes(path, name, arrow_type, allowed) > allowed:
                        raise too_large(path, n_bytes, where=f" in column {name}")
            self._measured.add(name)


class _OneOpen:
    """Parquet files of which the one that was read last stays open."""

    def __init__(self, files: Sequence[_Known]):
        self._files = files
        self._index = -1
        self._stack = ExitStack()

    def read(self, index: int, groups: list[int], columns: list[str], n_rows: int) -> pa.Table:
        """Return row groups of `n_rows` rows in all of file `index`."""
        known = self._files[index]
        if index != self._index:
            self._stack.close()
            self._file = self._stack.enter_context(known.reopened())
            self._index = index
        with reading(known.path):
            return _read(self._file, groups, columns, n_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _most_rows(n_bytes: int, schema: pa.Schema) -> int:
    """Return how many rows a file may have, by its size and the width of its columns."""
    bytes_of_row = sum(width(field.type) for field in schema)
    return allowed_bytes(n_bytes) // max(1, bytes_of_row)


def _length(file: pq.ParquetFile, group: int) -> int:
    """Return the rows of a row group as the footer says them."""
    return sum(batch.num_rows for batch in file.iter_batches(MOST_ROWS, [group], []))


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


def _opened_bytes(path: Bytes, column: str, arrow_type: pa.DataType, allowed: int) -> int:
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


def _decoded_bytes(path: Bytes, column: str) -> int:
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
def _opened(path: Bytes, **how: Any) -> Iterator[pq.ParquetFile]:
    if path.exists() and not path.is_file():  # to open a pipe would wait for a writer
        raise TraceError(f"{path} is no file; copy, record or import the trace again.")
    with reading(path), ExitStack() as stack:
        if isinstance(path, Path):
            data = pa.OSFile(os.fsencode(path))  # its name need not be valid text
        else:
            data = pa.PythonFile(path.open("rb"), "r")
            how["pre_buffer"] = True  # the columns of a read in few requests
        stack.enter_context(data)
        opened = pq.ParquetFile(data, page_checksum_verification=True, **how)
        yield stack.enter_context(opened)


def _size_and_time(path: Bytes) -> tuple[int, int]:
    """Return what tells a file from another that is put in its place.

    The number of the file would not do: some network file systems change it by themselves.
    """
    with reading(path):
        found = path.stat()
    return found.st_size, found.st_mtime_ns


def _smallest(schema: pa.Schema) -> str:
    if not len(schema):
        raise pa.ArrowInvalid("it has no columns")
    return str(min(schema, key=lambda field: (not has_width(field.type), width(field.type))).name)
