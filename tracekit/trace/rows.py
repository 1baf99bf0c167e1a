"""Where the rows of a trace come from: a table in memory, or Parquet files on disk."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace.errors import TraceError

# A block of a table in memory; of files, a row group is a block.
BLOCK_BYTES = 64 << 20


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while reading `path` into one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise TraceError(
            f"{path} is missing; a trace is complete in itself: copy the whole directory again."
        ) from error
    except PermissionError as error:
        raise TraceError(f"{path} may not be read; give yourself read permission.") from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        what = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise TraceError(
            f"{path} is cut short or damaged ({what}); copy, record or import it again."
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
        return self._table[column].null_count < self.n_rows and not _elements_null(
            self._table[column]
        )


def _elements_null(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_fixed_size_list(column.type):
        return False
    return all(c.flatten().null_count == len(c.flatten()) for c in column.chunks)


class FileRows:
    """The rows of one Parquet file, or of several that continue each other.

    Files are opened for each read and closed again: an interrupted recording may have left more
    parts than a process may hold open.
    """

    def __init__(self, paths: Sequence[Path], n_rows: int | None = None):
        self._paths = list(paths)
        self._metadata = []
        groups = []
        for path in self._paths:
            with reading(path), pq.ParquetFile(path) as file:
                metadata, schema = file.metadata, file.schema_arrow
            if not self._metadata:
                self.schema = schema
            elif not schema.equals(self.schema):
                raise TraceError(
                    f"{path} has other columns than {self._paths[0].name}; "
                    "the parts of one recording are alike: remove the foreign one."
                )
            file_index = len(self._metadata)
            self._metadata.append(metadata)
            groups += [
                (file_index, g, metadata.row_group(g).num_rows)
                for g in range(metadata.num_row_groups)
            ]
        self._groups = groups
        ends = np.cumsum([rows for _, _, rows in groups], dtype=np.int64)
        total = int(ends[-1]) if len(ends) else 0
        self.n_rows = total if n_rows is None else n_rows
        self._ends = ends

    @property
    def group_ends(self) -> np.ndarray:
        """Where the row groups end, int64 [G]; the last end is `n_rows`."""
        inside = self._ends[self._ends < self.n_rows]
        return np.append(inside, self.n_rows) if self.n_rows else inside[:0]

    def cut(self, n_rows: int) -> "FileRows":
        """Return the first `n_rows` rows."""
        return FileRows(self._paths, n_rows)

    def read(self, columns: Sequence[str], start: int = 0, stop: int | None = None) -> pa.Table:
        """Return rows `start` to `stop` of `columns`, reading only the row groups they are in."""
        stop = self.n_rows if stop is None else stop
        columns = list(columns)
        first = int(np.searchsorted(self._ends, start, side="right"))
        last = int(np.searchsorted(self._ends, stop, side="left"))
        tables = []
        by_file: dict[int, list[int]] = {}
        for file_index, group, _ in self._groups[first : last + 1] if start < stop else ():
            by_file.setdefault(file_index, []).append(group)
        for file_index, wanted in by_file.items():
            path = self._paths[file_index]
            with (
                reading(path),
                pq.ParquetFile(
                    path,
                    metadata=self._metadata[file_index],
                    page_checksum_verification=True,
                ) as file,
            ):
                tables.append(file.read_row_groups(wanted, columns=columns))
        if not tables:
            fields = [self.schema.field(name) for name in columns]
            return pa.schema(fields).empty_table()
        table = pa.concat_tables(tables).select(columns)
        offset = start - (int(self._ends[first - 1]) if first else 0)
        return table.slice(offset, stop - start)

    def has_values(self, column: str) -> bool:
        """Say whether `column` exists and is not all null, from the files' statistics."""
        if column not in self.schema.names or self.n_rows == 0:
            return False
        for file_index, group, _ in self._groups:
            row_group = self._metadata[file_index].row_group(group)
            for c in range(row_group.num_columns):
                chunk = row_group.column(c)
                if chunk.path_in_schema.split(".")[0] != column:
                    continue
                statistics = chunk.statistics
                if statistics is None or not statistics.has_null_count:
                    return True
                if statistics.null_count < chunk.num_values:
                    return True
        return False


Rows = TableRows | FileRows
