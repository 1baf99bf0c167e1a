"""Routing that colibri logs with ``ROUTE_TRACE``: a line for each token at each layer.

In: lines ``<call> <row> <layer> <expert>:<weight> …``, where a call is one layer of one pass. Out: the run.
"""

import re
from collections.abc import Iterator
from itertools import count

import numpy as np

from tracekit.formats.engine_passes import Computed, PassReader
from tracekit.formats.format import Format, register
from tracekit.formats.given import File, Given
from tracekit.formats.number_lines import NumberLines
from tracekit.formats.options import ImportOptions
from tracekit.formats.source import Source, one_after_another

_PLACES = 3  # call, row, layer
_LINE = re.compile(rb"\d{1,10}( \d{1,10}){2}( \d{1,10}:[-+.\deEnaif]{1,40})+")


@register
class Colibri(Format):
    """Reader of the lines that colibri writes with `ROUTE_TRACE`."""

    name = "colibri"
    summary = "routing that colibri logs with ROUTE_TRACE"
    told_by = "its first line, `<call> <row> <layer> <expert>:<weight> …`"
    lacks = "which passes are of a prompt, the number of experts, sizes"

    def sniff(self, head: bytes) -> bool:
        """Say whether a file begins with a call, a row, a layer and weighted experts."""
        return _LINE.fullmatch(_first_line(head)) is not None

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each begins with a new turn."""
        return one_after_another(given.name, [_source(file) for file in given.files])


def _first_line(head: bytes) -> bytes:
    return next((line.strip() for line in head.splitlines() if line.strip()), b"")


def _source(file: File) -> Source:
    width = _PLACES + 2 * _first_line(file.head).count(b":")
    weights = range(_PLACES + 1, width, 2)
    lines = NumberLines(file.path, width, floats=weights, blank=b":")
    source = Source(str(file.path), ())

    def rows() -> Iterator[Computed]:
        n_rows = 0
        for piece in lines.pieces(source):
            columns = lines.columns(piece, count(n_rows))
            number = np.arange(n_rows, n_rows + len(columns[0]))
            n_rows += len(number)
            yield Computed(
                layer=columns[2],
                experts=np.stack(columns[_PLACES::2], axis=1),
                call=columns[0],
                number=number,
                weights=np.stack(columns[_PLACES + 1 :: 2], axis=1),
            )

    source.chunks = PassReader(source, lines.place).chunks(rows())
    return source
