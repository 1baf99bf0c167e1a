"""Long CSV and Parquet tables: one row for each selected expert, or one for each routing with a list.

In: a file whose columns are called as `names.ALIASES` has it. Out: the run, piece by piece.
"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tracekit.formats.archives import damaged, is_packed, parquet_file
from tracekit.formats.format import Format, register
from tracekit.formats.from_arrow import ArrowRows
from tracekit.formats.given import File, Given
from tracekit.formats.grouping import Rows
from tracekit.formats.names import Named, named, slot_order
from tracekit.formats.options import ImportOptions
from tracekit.formats.row_files import RowFile, read_in_order
from tracekit.formats.source import Source, one_after_another
from tracekit.formats.tables import CsvTable, header_of
from tracekit.trace import TraceError
from tracekit.trace.file_rows import FileRows

REQUIRED = ("layer", "token", "experts")
BATCH_ROWS = 1 << 18


@register
class UniversalCsv(Format):
    """Reader of CSV files with a row for each selected expert."""

    name = "csv"
    summary = "a row for each selected expert: prompt, token, layer, expert, and what else is known"
    told_by = "a header with the columns layer, token and expert, under any of their names"
    lacks = "what it has no columns for"
    is_universal = True

    def sniff(self, head: bytes) -> bool:
        """Say whether the first line names the columns of a long table."""
        return not header_of(head)[1].missing(REQUIRED)

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the tables; rows of the same prompt follow each other, in one file or in several."""
        sources = read_in_order([_csv_rows(file) for file in given.files], options)
        return one_after_another(given.name, sources)


@register
class UniversalParquet(Format):
    """Reader of Parquet files with a row for each selected expert, or each routing."""

    name = "parquet"
    summary = "the columns of csv; experts and weights may be lists"
    told_by = "the columns layer, token and experts of a Parquet file, under any of their names"
    lacks = "what it has no columns for"
    is_universal = True

    def recognises(self, given: Given) -> bool:
        """Say whether every file is a Parquet file with the columns of a long table."""
        return bool(given.files) and all(
            file.columns and not named(file.columns).missing(REQUIRED) for file in given.files
        )

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the tables; rows of the same prompt follow each other, in one file or in several."""
        sources = read_in_order([_parquet_rows(file.path) for file in given.files], options)
        return one_after_another(given.name, sources)


def table_rows(name: str, rows: Iterator[Rows], arrow: ArrowRows) -> RowFile:
    """Return the rows of a table with the source that they are of."""
    source = Source(name, (), slot_order=slot_order(arrow.names))
    return RowFile(source, rows, arrow.labels, arrow.line_of)


# ---- Parquet ------------------------------------------------------------------------------------


def _parquet_rows(path: Path) -> RowFile:
    with parquet_file(path) as table:
        names = named(table.schema_arrow.names)
    if not is_packed(path):  # by gzip; what that unpacks to is limited, too
        FileRows(path).measure(list(names.found.values()))
    arrow = ArrowRows(str(path), names, lambda row: f"{path}, row {row}")

    def rows() -> Iterator[Rows]:
        with parquet_file(path) as table, damaged(str(path)):
            for batch in _batches(table, names):
                yield arrow.rows(pa.Table.from_batches([batch]))

    return table_rows(str(path), rows(), arrow)


def _batches(table: pq.ParquetFile, names: Named) -> Iterator[pa.RecordBatch]:
    columns = list(names.found.values())
    for batch in table.iter_batches(BATCH_ROWS, columns=columns):
        batch.validate()
        yield batch


# ---- CSV ----------------------------------------------------------------------------------------


def _csv_rows(file: File) -> RowFile:
    columns, names, separator = header_of(file.head)
    if len(set(columns)) < len(columns):
        raise TraceError(f"{file.path}, line 1: the header names a column twice; rename one.")
    table = CsvTable(file.path, len(file.head.splitlines(keepends=True)[0]), columns, separator)
    arrow = ArrowRows(str(file.path), names, table.place, codes_appear_in_order=True)
    found = table_rows(str(file.path), iter(()), arrow)
    found.rows = (arrow.rows(piece) for piece in table.pieces(names, found.source))
    return found
