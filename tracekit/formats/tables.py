"""CSV tables, read in pieces: their header, their known columns, the line at which one is broken.

In: a file of lines. Out: Arrow tables of the columns that are known.
"""

import csv
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import csv as arrow_csv

from tracekit.ahead import each_ahead
from tracekit.formats.archives import damaged
from tracekit.formats.lines import Lines
from tracekit.formats.names import NEITHER, WORDS, Named, named
from tracekit.formats.source import Source
from tracekit.trace import TraceError
from tracekit.trace.schema import DECODE, PREFILL

SEPARATORS = (",", ";", "\t")
UNKNOWN_WORDS = ("", "nan", "NaN", "-nan", "None", "null")
_WHOLE = re.compile(r"\s*[-+]?\d{1,18}\s*")
_IS_LIST = re.compile(r"\s*[\[(]?\s*\d+[\s,;]+\d+|\s*[\[(]")
_TOO_LARGE = 10**18
_NUMBER = re.compile(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*")
_TEXT = pa.dictionary(pa.int32(), pa.string())
_TYPES = {"prompt": _TEXT, "weights": pa.float32(), **dict.fromkeys(WORDS, _TEXT)}
# Nearly all values fit these, which are faster to read; where one does not, all are read as `_TYPES`.
_NARROW = {
    "token": pa.int32(),
    "layer": pa.int16(),
    "slot": pa.int16(),
    "experts": pa.int32(),
    "phase": pa.bool_(),  # whether it is decode
}
_PHASES = [
    [word for word, phase in WORDS["phase"].items() if phase == of] for of in (PREFILL, DECODE)
]
# Of these a value may be missing.
_NULLABLE = ("weights", "token_id", "residency", "dropped", "kept", "expert_bytes")


def _is_whole(text: str) -> bool:
    """Say whether a text is a whole number that is written with a fraction: ``3.0``."""
    return _NUMBER.fullmatch(text) is not None and float(text).is_integer()


def header_of(head: bytes) -> tuple[list[str], Named, str]:
    """Return the columns that the first line names, which of them are known, and what parts them."""
    line = head.splitlines()[0].decode("utf-8", "replace") if head.splitlines() else ""
    found: tuple[list[str], Named, str] = [], named([]), ","
    for separator in SEPARATORS:
        if separator in line:
            columns = [c.strip() for c in next(csv.reader([line], delimiter=separator))]
            names = named(columns)
            if len(names.found) > len(found[1].found):
                found = columns, names, separator
    return found


class CsvTable:
    """The rows of a CSV file.

    Parameters
    ----------
    path : Path
    header_bytes : int
        Length of the header's line; 0: there is none.
    columns : list of str
    separator : str
    """

    def __init__(self, path: Path, header_bytes: int, columns: list[str], separator: str):
        self.path = path
        self.place = (lines := Lines(path, header_bytes)).place
        self._lines = lines
        self._columns = columns
        self._separator = separator
        self._names: dict[str, str] = {}  # from the name in the file to the name here
        self._tries: list[dict[str, pa.DataType]] = []

    def pieces(self, names: Named, source: Source) -> Iterator[pa.Table]:
        """Yield the known columns, piece by piece; tell the source if the last line is cut.

        Raises
        ------
        TraceError
            A line is broken; the sentence names it.
        """
        types = {called: _TYPES.get(name, pa.int64()) for name, called in names.found.items()}
        narrow = {c: _NARROW.get(name, types[c]) for name, c in names.found.items()}
        self._names = {called: name for name, called in names.found.items()}
        self._tries = [narrow, types]
        n_rows = 0
        lines = self._lines.whole(lambda line: self._fault(line, types) is None, source.cut)
        for piece, table in each_ahead(self._read, lines):
            if table is None:
                table = self._with_fractions(piece, types, n_rows)
            n_rows += table.num_rows
            yield table

    def _read(self, piece: bytes) -> tuple[bytes, pa.Table | None]:
        """Return a piece with its table, or with None if a value is not of its column's type.

        Where a value does not fit the narrow types, no further piece is tried with them.
        """
        for types in self._tries:
            try:
                return piece, self._parsed(piece, types)
            except pa.ArrowException:
                self._tries = self._tries[-1:]
        return piece, None

    def _with_fractions(self, piece: bytes, types: dict[str, pa.DataType], n_rows: int) -> pa.Table:
        """Return the table of a piece in which pandas wrote 3.0 for 3, as it does beside a gap."""
        if fault := self._broken(piece, types, n_rows):
            raise fault
        floats = {c: pa.float64() if k == pa.int64() else k for c, k in types.items()}
        with damaged(str(self.path)):
            return self._parsed(piece, floats)

    def _parsed(self, piece: bytes, types: dict[str, pa.DataType]) -> pa.Table:
        return arrow_csv.read_csv(
            pa.BufferReader(pa.py_buffer(piece)),
            arrow_csv.ReadOptions(column_names=self._columns, block_size=len(piece)),
            arrow_csv.ParseOptions(
                delimiter=self._separator, quote_char='"' if b'"' in piece else False
            ),
            arrow_csv.ConvertOptions(
                column_types=types,
                include_columns=list(types),
                null_values=list(UNKNOWN_WORDS),
                strings_can_be_null=True,
                false_values=_PHASES[PREFILL],
                true_values=_PHASES[DECODE],
                check_utf8=False,  # the few that are looked at are decoded
            ),
        )

    def _broken(
        self, piece: bytes, types: dict[str, pa.DataType], n_rows: int
    ) -> TraceError | None:
        """Return the error for the first broken line, None if there is none."""
        rows = (line for line in piece.splitlines() if line.strip())
        for number, line in enumerate(rows, n_rows):
            fault = self._fault(line, types)
            if fault is not None:
                return TraceError(f"{self.place(number)}{fault}; repair the line or record again.")
        return None

    def _fault(self, line: bytes, types: dict[str, pa.DataType]) -> str | None:
        """Return the fault of a line, beginning with the comma or colon after its number."""
        try:
            text = line.decode("utf-8")
            fields = next(csv.reader(io.StringIO(text), delimiter=self._separator), [])
        except (UnicodeDecodeError, csv.Error) as error:
            return f": it is no line of text ({error})"
        if len(fields) != len(self._columns):
            return f": it has {len(fields)} fields where the header names {len(self._columns)}"
        for column, value in zip(self._columns, fields, strict=True):
            kind, name = types.get(column), self._names.get(column, "")
            if name in _NULLABLE and value.strip() in UNKNOWN_WORDS:
                continue
            if name in WORDS and value.strip().lower() not in WORDS[name]:
                return f", column {column}: {value[:40]!r} is {NEITHER[name]}"
            if kind is None or pa.types.is_dictionary(kind):
                continue
            if kind == pa.float32():
                if not _NUMBER.fullmatch(value):
                    return f", column {column}: {value[:40]!r} is no number"
            elif name == "experts" and _IS_LIST.match(value):
                return (
                    f", column {column}: {value[:40]!r} is a list, and in a CSV each selected expert has a "
                    "row; write lists as Parquet or JSON lines"
                )
            elif not _WHOLE.fullmatch(value):
                if not _is_whole(value):
                    return f", column {column}: {value[:40]!r} is no whole number"
                if abs(float(value)) >= _TOO_LARGE:
                    return f", column {column}: {value[:40]!r} is too large a number"
        return None
