"""A CSV file that is written table by table.

In: tables of one schema. Out: a header and a line for each row; a null is an empty field.
"""

from typing import BinaryIO, Self

import pyarrow as pa
from pyarrow import csv


class CsvFile:
    """A context manager that writes CSV to a file, which stays open.

    Parameters
    ----------
    file : binary file
    schema : pa.Schema
        Of numbers, and words without a comma, a quotation mark or a line end.
    """

    def __init__(self, file: BinaryIO, schema: pa.Schema):
        self._file, self._schema = file, schema

    def __enter__(self) -> Self:
        # Arrow would put quotation marks around the names.
        self._file.write((",".join(self._schema.names) + "\n").encode())
        options = csv.WriteOptions(include_header=False, batch_size=1 << 14, quoting_style="none")
        self._writer = csv.CSVWriter(self._file, self._schema, write_options=options)
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def write(self, table: pa.Table) -> None:
        """Write the rows of a table."""
        self._writer.write_table(table)
