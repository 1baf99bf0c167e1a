"""Lines of numbers, all of one width, as an engine prints them: their columns, or the line that is broken.

In: the lines of a file. Out: an array for each column.
"""

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv as arrow_csv

from tracekit.formats.lines import Lines
from tracekit.formats.source import Source
from tracekit.trace import TraceError
from tracekit.trace.columns import one_chunk, to_numpy

_MOST_DIGITS = 10
_LIMIT = 1 << 31


def first_numbers(head: bytes, separator: bytes | None = None, most: int = 2) -> list[list[int]]:
    """Return the whole numbers of the first lines that are not empty; none if one has anything else.

    Parameters
    ----------
    head : bytes
        Its beginning; a last line without a line end counts only if it is the first.
    separator : bytes or None
        None: any blanks.
    most : int
        So many lines are looked at.
    """
    lines = [line for line in head.splitlines(keepends=True) if line.strip()]
    whole = [line for line in lines if line.endswith((b"\n", b"\r"))] or lines
    found = []
    for line in whole[:most]:
        numbers = _whole_numbers(line.split(separator))
        if numbers is None:
            return []
        found.append(numbers)
    return found


def _whole_numbers(fields: list[bytes]) -> list[int] | None:
    """Return the numbers of fields, or None if one is none that fits 32 bits."""
    numbers = []
    for field in fields:
        digits = field.strip().removeprefix(b"-")
        if not digits.isdigit() or len(digits) > _MOST_DIGITS:
            return None
        numbers.append(int(field))
    return numbers if all(-_LIMIT <= number < _LIMIT for number in numbers) else None


class NumberLines:
    """The lines of a file.

    Parameters
    ----------
    path : Path
    width : int
        Numbers of a line.
    separator : str
    floats : collection of int
        Columns that are no whole numbers.
    blank : bytes
        Characters that also separate numbers, beside `separator`.
    """

    def __init__(
        self,
        path: Path,
        width: int,
        separator: str = " ",
        floats: Collection[int] = (),
        blank: bytes = b"",
    ):
        self._lines = Lines(path)
        self.place = self._lines.place
        self._path = path
        self.width = width
        self._separator = separator.encode()
        self._blank = bytes.maketrans(blank, self._separator * len(blank))
        self._kinds = {
            str(column): pa.float32() if column in floats else pa.int32() for column in range(width)
        }

    def pieces(self, source: Source) -> Iterator[bytes]:
        """Yield pieces of whole lines; tell the source if the last line has no line end.

        An engine ends each line when it writes it, so what stands in another one may be half a
        number.
        """
        for piece in self._lines.pieces():
            whole = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
            if whole < len(piece):
                source.cut(
                    f"{self._path} is incomplete: its last line is cut off, and is left out."
                )
            if piece[:whole].strip():
                yield piece[:whole]

    def columns(self, piece: bytes, rows: Iterable[int]) -> list[np.ndarray]:
        """Return the numbers of whole lines, int32 or float32 [n] for each column.

        Parameters
        ----------
        piece : bytes
        rows : iterable of int
            Number of each of the lines among those of the file that are not empty.

        Raises
        ------
        TraceError
            A line has other fields; the sentence names it.
        """
        if self._blank:
            piece = piece.translate(self._blank)
        try:
            table = arrow_csv.read_csv(
                pa.BufferReader(pa.py_buffer(piece)),
                arrow_csv.ReadOptions(column_names=list(self._kinds), block_size=1 << 20),
                arrow_csv.ParseOptions(delimiter=self._separator.decode(), quote_char=False),
                arrow_csv.ConvertOptions(column_types=self._kinds, null_values=[]),
            )
        except pa.ArrowException:
            return self._line_by_line(piece, rows)
        return [to_numpy(one_chunk(column), 0) for column in table.columns]

    def _line_by_line(self, piece: bytes, rows: Iterable[int]) -> list[np.ndarray]:
        """Parse lines with blanks that Arrow does not; a line that is broken is named."""
        found = []
        # `rows` may go on beyond these lines.
        for line, row in zip((li for li in piece.splitlines() if li.strip()), rows, strict=False):
            fields = line.split(None if self._separator == b" " else self._separator)
            fault = self._fault(fields)
            if fault is not None:
                raise TraceError(f"{self.place(row)}: {fault}; repair the line or record again.")
            found.append([float(field) for field in fields])
        values = np.array(found)
        dtypes = [np.float32 if kind == pa.float32() else np.int32 for kind in self._kinds.values()]
        with np.errstate(over="ignore"):
            return [values[:, n].astype(dtype) for n, dtype in enumerate(dtypes)]

    def _fault(self, fields: list[bytes]) -> str | None:
        if len(fields) != len(self._kinds):
            return f"it has {len(fields)} numbers where others have {len(self._kinds)}"
        for field, kind in zip(fields, self._kinds.values(), strict=True):
            shown = field[:40].decode("utf-8", "replace")
            if kind == pa.float32():
                try:
                    float(field)
                except ValueError:
                    return f"{shown!r} is no number"
            elif _whole_numbers([field]) is None:
                return f"{shown!r} is no whole number"
        return None
