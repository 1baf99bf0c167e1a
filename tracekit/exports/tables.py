"""Long tables, CSV and Parquet: one row for each selected expert.

In: a trace. Out: rows in the order of the trace, slots in theirs, under the names that ``tracekit
import`` reads: the file becomes a trace again that replays to the same figures.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.exports.csv_file import CsvFile
from tracekit.exports.format import ExportFormat, register
from tracekit.exports.tokens import TokenColumns
from tracekit.trace import Trace
from tracekit.trace.columns import NULLS, from_numpy

WORDS_OF_PHASES = ("prefill", "decode")
_TYPES = {
    "prompt": pa.int32(),
    "pass": pa.int32(),
    "phase": pa.dictionary(pa.int32(), pa.string()),
    "token": pa.int32(),
    "token_id": pa.int32(),
    "kept": pa.uint8(),
    "layer": pa.int16(),
    "expert_bytes": pa.int64(),
    "slot": pa.uint16(),
    "expert": pa.uint16(),
    "weight": pa.float32(),
    "residency": pa.uint8(),
    "dropped": pa.uint8(),
}
# A row group of Parquet has about so many rows.
GROUP_ROWS = 1 << 20


class _LongTable(ExportFormat):
    """What both files have in common: their rows."""

    carries = ("place", "weights", "residency", "dropped", "kept", "token")

    def import_flags(self, trace: Trace) -> list[str]:
        """Say how many experts and layers there are, which rows do not."""
        return ["--n-expert", str(trace.n_expert), "--n-layer", str(trace.n_layer)]


@register
class LongCsv(_LongTable):
    """A header and a line for each selected expert; an empty field is a value that is not known."""

    name = "csv"
    endings = (".csv",)
    summary = "a row for each selected expert: prompt, pass, phase, token, layer, slot, expert …"

    def write(self, trace: Trace, file: BinaryIO, path: Path) -> None:
        """Write the lines."""
        rows = _Rows(trace)
        with CsvFile(file, rows.schema) as lines:
            for table in rows.tables():
                lines.write(table)


@register
class LongParquet(_LongTable):
    """The rows of csv as a Parquet file, which any data frame library and DuckDB read."""

    name = "parquet"
    endings = (".parquet",)
    summary = "the rows of csv, packed"

    def write(self, trace: Trace, file: BinaryIO, path: Path) -> None:
        """Write the rows, in groups of whole blocks."""
        rows = _Rows(trace)
        with pq.ParquetWriter(file, rows.schema, compression="zstd") as writer:
            for table in _gathered(rows.tables(), GROUP_ROWS):
                writer.write_table(table, row_group_size=len(table))


def _gathered(tables: Iterator[pa.Table], n_rows: int) -> Iterator[pa.Table]:
    """Yield tables of `n_rows` rows or a little more, made of smaller ones."""
    waiting: list[pa.Table] = []
    n = 0
    for table in tables:
        waiting.append(table)
        n += len(table)
        if n >= n_rows:
            yield pa.concat_tables(waiting)
            waiting, n = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


class _Rows:
    """The rows of a long table.

    Attributes
    ----------
    schema : pa.Schema
        The columns that the trace has values for. Slots are numbered only if they are ranked.
    """

    def __init__(self, trace: Trace):
        self._trace = trace
        self._tokens = TokenColumns(trace)
        sizes = trace.layer_columns
        self._sizes = np.full(int(sizes["layer"].max()) + 1, -1, np.int64)
        self._sizes[sizes["layer"]] = sizes["expert_bytes"]
        self._lists = [n for n in ("weights", "residency", "dropped") if trace.has(n)]
        absent = {
            "weight": "weights" not in self._lists,
            "residency": "residency" not in self._lists,
            "dropped": "dropped" not in self._lists,
            "slot": trace.facts.slot_order != "ranked",
            "token_id": not self._tokens.has_ids,
            "kept": not self._tokens.marks_kept,
            "expert_bytes": not (self._sizes >= 0).any(),
        }
        self.schema = pa.schema([(n, kind) for n, kind in _TYPES.items() if not absent.get(n)])

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows in the order of the trace."""
        columns = ["turn", "pass", "phase", "step", "layer", "experts", *self._lists]
        for block in self._trace.iter_routing(columns):
            yield self._table(block)

    def _table(self, block: dict[str, np.ndarray]) -> pa.Table:
        n_rows, k = block["experts"].shape
        of_rows = {
            "prompt": block["turn"],
            "pass": block["pass"],
            "phase": block["phase"],
            "token": block["step"],
            "layer": block["layer"],
            "expert_bytes": self._sizes[block["layer"]],
        }
        if self._tokens.is_needed:
            of_rows |= self._tokens.of(block["pass"], block["step"])
        values = {name: np.repeat(column, k) for name, column in of_rows.items()}
        values["slot"] = np.tile(np.arange(k, dtype=np.uint16), n_rows)
        values["expert"] = block["experts"].reshape(-1)
        for name in self._lists:
            values["weight" if name == "weights" else name] = block[name].reshape(-1)
        arrays = [_array(name, values[name], self.schema.field(name)) for name in self.schema.names]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _array(name: str, values: np.ndarray, field: pa.Field) -> pa.Array:
    if name == "phase":
        indices = from_numpy(values, pa.int32(), len(values))
        return pa.DictionaryArray.from_arrays(indices, _phases())
    null = NULLS.get({"weight": "weights", "token_id": "token"}.get(name, name))
    valid = None
    if name == "weight":
        valid = ~np.isnan(values)
    elif null is not None and name != "kept":
        valid = values != null
    return from_numpy(values, field.type, len(values), valid)


def _phases() -> pa.Array:
    """Return the words of the phases; ``pa.array`` would import pandas."""
    text = "".join(WORDS_OF_PHASES).encode()
    offsets = np.cumsum([0, *map(len, WORDS_OF_PHASES)], dtype=np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(WORDS_OF_PHASES), buffers)
