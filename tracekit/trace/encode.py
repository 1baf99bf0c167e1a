"""Parquet as traces have it: zstd, floats split by byte, row groups that end with a pass.

In: tables, or rows that are read piece by piece. Out: a Parquet file, written as a whole or not at
all. This module knows nothing of what the columns mean.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace.atomic import whole_file
from tracekit.trace.columns import spread_nulls, to_numpy, value_type
from tracekit.trace.passes import group_ends, group_rows, pass_starts
from tracekit.trace.rows import Rows, width
from tracekit.trace.schema import LAYERS_FILE


def _options(schema: pa.Schema) -> dict[str, Any]:
    split: list[str] = []
    dictionary: list[str] = []
    for field in schema:
        inside = value_type(field.type)
        column = field.name if inside == field.type else f"{field.name}.list.element"
        (split if pa.types.is_floating(inside) else dictionary).append(column)
    return {
        "compression": "zstd",
        "use_dictionary": dictionary,
        "use_byte_stream_split": split,
        "write_page_checksum": True,
    }


class GroupWriter:
    """Writes the row groups of one Parquet file.

    Parameters
    ----------
    file : file object
    schema : pa.Schema
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema):
        self._schema = schema
        self._writer = pq.ParquetWriter(file, schema, **_options(schema))

    def write(self, table: pa.Table) -> None:
        """Write a table as one row group; nothing if it has no rows."""
        if table.num_rows:
            columns = [spread_nulls(table[name]) for name in self._schema.names]
            rows = pa.Table.from_arrays(columns, schema=self._schema)
            self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self) -> None:
        """Write what ends the file."""
        self._writer.close()


@contextmanager
def group_writer(path: Path, schema: pa.Schema) -> Iterator[GroupWriter]:
    """Give a writer of the file `path`, which is written as a whole or not at all.

    Raises
    ------
    TracekitError
    """
    with whole_file(path) as file:
        writer = GroupWriter(file, schema)
        try:
            yield writer
        finally:
            writer.close()


def write_groups(path: Path, schema: pa.Schema, groups: Iterator[pa.Table]) -> None:
    """Write a Parquet file with one row group for each table, as a whole or not at all.

    Raises
    ------
    TracekitError
    """
    with group_writer(path, schema) as writer:
        for table in groups:
            writer.write(table)


def write_rows(path: Path, schema: pa.Schema, rows: Rows) -> None:
    """Write the rows of a trace file that has a `pass` column, in bounded memory.

    Parameters
    ----------
    path : Path
    schema : pa.Schema
        Of the file; `rows` must have its columns.
    rows : Rows

    Raises
    ------
    TracekitError
    """
    bytes_of_row = sum(width(field.type) for field in schema)
    starts, phases, rows_of_token = _places(rows)
    most = group_rows(rows.n_rows, rows_of_token, bytes_of_row)
    ends = group_ends(starts, phases, rows.n_rows, most)
    write_groups(path, schema, rows.read_each(schema.names, pairwise([0, *ends])))


def _places(rows: Rows) -> tuple[np.ndarray, np.ndarray, int]:
    """Return the first row of each pass, its phase, and how many rows a token has."""
    names = [name for name in ("pass", "phase", "layer") if name in rows.schema.names]
    spans = rows.spans(names)
    starts, phases, layers = [], [], set()
    last = None
    for (start, _), table in zip(spans, rows.read_each(names, spans), strict=True):
        passes = to_numpy(table["pass"])
        begins = pass_starts(passes)
        if last is not None and len(passes) and passes[0] == last:
            begins = begins[1:]
        last = passes[-1] if len(passes) else last
        starts.append(start + begins)
        phases.append(to_numpy(table["phase"])[begins])
        if "layer" in names:
            layers.update(np.unique(to_numpy(table["layer"])).tolist())
    return np.concatenate(starts), np.concatenate(phases), max(1, len(layers))


class GrowingGroups:
    """Writes row groups that are the larger the longer the file is, from tables of whole passes.

    Parameters
    ----------
    writer : GroupWriter
    schema : pa.Schema
    """

    def __init__(self, writer: GroupWriter, schema: pa.Schema):
        self._writer = writer
        self._bytes_of_row = sum(width(field.type) for field in schema)
        self._waiting: list[pa.Table] = []
        self._starts, self._phases = np.empty(0, np.int64), np.empty(0, np.uint8)
        self._n_waiting = self._n_rows = 0

    def write(
        self, table: pa.Table, starts: np.ndarray, phases: np.ndarray, rows_of_token: int
    ) -> None:
        """Take a table; its last rows wait for more of their group.

        Parameters
        ----------
        table : pa.Table
        starts, phases : [P]
            The first row in the table, and the phase, of each of its passes.
        rows_of_token : int
        """
        self._n_rows += table.num_rows
        most = group_rows(self._n_rows, rows_of_token, self._bytes_of_row)
        self._waiting.append(table)
        self._starts = np.concatenate((self._starts, starts + self._n_waiting))
        self._phases = np.concatenate((self._phases, phases))
        self._n_waiting += table.num_rows
        *ends, _ = [0, *group_ends(self._starts, self._phases, self._n_waiting, most)]
        if len(ends) > 1:
            rows = pa.concat_tables(self._waiting)
            for start, stop in pairwise(ends):
                self._writer.write(rows.slice(start, stop - start).combine_chunks())
            self._keep(rows, ends[-1])

    def _keep(self, rows: pa.Table, start: int) -> None:
        """Keep the rows from `start` on for the next group."""
        self._waiting = [rows.slice(start)]
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        self._starts = np.maximum(self._starts[first:] - start, 0)
        self._phases = self._phases[first:]
        self._n_waiting = rows.num_rows - start

    def flush(self) -> None:
        """Write what waits."""
        if self._n_waiting:
            self._writer.write(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting, self._n_waiting = [], 0
        self._starts, self._phases = self._starts[:0], self._phases[:0]


def write_layers(folder: Path, table: pa.Table) -> None:
    """Write ``layers.parquet``, with a row group for each layer if it carries router matrices.

    Raises
    ------
    TracekitError
    """
    n_rows = table.num_rows
    has_routers = "router_matrix" in table.column_names
    has_routers = has_routers and table["router_matrix"].null_count < n_rows
    step = 1 if has_routers else max(1, n_rows)
    groups = (table.slice(row, step) for row in range(0, n_rows, step))
    write_groups(folder / LAYERS_FILE, table.schema, groups)
