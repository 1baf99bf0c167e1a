"""Parquet as traces have it: zstd, floats split by byte, row groups that end with a pass."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.trace.atomic import whole_file
from tracekit.trace.columns import spread_nulls, to_numpy
from tracekit.trace.rows import Rows, width
from tracekit.trace.schema import PREFILL

# A row group holds a few hundred tokens, and less where gate inputs make them heavy: it is what a
# reader or a writer needs in memory at once.
GROUP_TOKENS = 256
GROUP_BYTES = 16 << 20


def _options(schema: pa.Schema) -> dict:
    split, dictionary = [], []
    for field in schema:
        is_list = pa.types.is_fixed_size_list(field.type) or pa.types.is_list(field.type)
        value_type = field.type.value_type if is_list else field.type
        column = f"{field.name}.list.element" if is_list else field.name
        (split if pa.types.is_floating(value_type) else dictionary).append(column)
    return {
        "compression": "zstd",
        "use_dictionary": dictionary,
        "use_byte_stream_split": split,
        "write_page_checksum": True,
    }


def write_groups(path: Path, schema: pa.Schema, groups: Iterator[pa.Table]) -> None:
    """Write a Parquet file with one row group for each table; whole or not at all.

    Raises
    ------
    TracekitError
    """
    with (
        whole_file(path) as work,
        pa.OSFile(os.fsencode(work), "wb") as file,
        pq.ParquetWriter(file, schema, **_options(schema)) as writer,
    ):
        for table in groups:
            if table.num_rows:
                columns = [spread_nulls(table[name]) for name in schema.names]
                rows = pa.Table.from_arrays(columns, schema=schema)
                writer.write_table(rows, row_group_size=rows.num_rows)


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
    columns = rows.read(["pass", "phase", "step"])
    ends = group_ends(
        *(to_numpy(columns[c]) for c in columns.column_names), sum(width(f.type) for f in schema)
    )
    starts = [0, *ends[:-1]]
    groups = (rows.read(schema.names, a, b) for a, b in zip(starts, ends, strict=False))
    write_groups(path, schema, groups)


def group_ends(
    passes: np.ndarray, phases: np.ndarray, steps: np.ndarray, bytes_of_row: int
) -> list[int]:
    """Return where row groups end: after whole passes, unless one prefill pass is too large.

    Parameters
    ----------
    passes, phases, steps : [n]
        The rows, in (pass, layer, step) order.
    bytes_of_row : int
        Before encoding.

    Returns
    -------
    list of int
        Ascending; the last is n.
    """
    n_rows = len(passes)
    # Rows of one token in the middle of the trace stand for all: a token has a row a layer.
    tokens = len(np.unique(passes.astype(np.int64) << 32 | steps)) if n_rows else 1
    most = max(1, min(GROUP_BYTES // bytes_of_row, GROUP_TOKENS * n_rows // tokens))
    ends: list[int] = []
    start = 0
    while start < n_rows:
        stop = min(start + most, n_rows)
        if stop < n_rows:
            first = int(np.searchsorted(passes, passes[stop], side="left"))
            if first > start:
                stop = first
            elif phases[stop] != PREFILL:
                stop = int(np.searchsorted(passes, passes[stop], side="right"))
        ends.append(stop)
        start = stop
    return ends
