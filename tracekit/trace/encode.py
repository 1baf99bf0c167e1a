"""Parquet as traces have it: zstd, floats split by byte, row groups that end with a pass.

In: tables, or rows that are read piece by piece. Out: a Parquet file, written as a whole or not at
all. This module knows nothing of what the columns mean.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace.atomic import whole_file
from tracekit.trace.columns import spread_nulls, to_numpy, value_type
from tracekit.trace.passes import group_ends
from tracekit.trace.rows import Rows, WithColumn, width
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


def write_rows(path: Path, schema: pa.Schema, rows: Rows | WithColumn) -> None:
    """Write the rows of a trace file that has a `pass` column, in bounded memory.

    Parameters
    ----------
    path : Path
    schema : pa.Schema
        Of the file; `rows` must have its columns.
    rows : Rows or WithColumn

    Raises
    ------
    TracekitError
    """
    places = rows.read(["pass", "phase", "step"])
    bytes_of_row = sum(width(field.type) for field in schema)
    passes, phases, steps = (to_numpy(places[name]) for name in places.column_names)
    ends = group_ends(passes, phases, steps, bytes_of_row)
    starts = [0, *ends[:-1]]
    groups = (rows.read(schema.names, a, b) for a, b in zip(starts, ends, strict=False))
    write_groups(path, schema, groups)


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
