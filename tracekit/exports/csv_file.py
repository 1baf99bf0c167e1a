"""A CSV file that is written table by table.

In: tables of one schema. Out: a header and a line for each row; a null is an empty field.
"""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyarrow import csv


class CsvFile:
    """A context manager that writes a CSV file.

    Parameters
    ----------
    path : Path
    schema : pa.Schema
        Of numbers, and words without a comma, a quotation mark or a line end.
    """

    def __init__(self, path: Path, schema: pa.Schema):
        self._path, self._schema = path, schema

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        file = self._stack.enter_context(pa.OSFile(os.fsencode(self._path), "wb"))
        # Arrow would put quotation marks around the names.
        file.write((",".join(self._schema.names) + "\n").encode())
        options = csv.WriteOptions(include_header=False, batch_size=1 << 14, quoting_style="none")
        writer = csv.CSVWriter(file, self._schema, write_options=options)
        self._writer = self._stack.enter_context(writer)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def write(self, table: pa.Table) -> None:
        """Write the rows of a table."""
        self._writer.write_table(table)
