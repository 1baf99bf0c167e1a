"""Files of rows that were cut anywhere: a file may go on with the prompt that the one before began.

In: the rows of each file, in the order of the files. Out: the chunks of each; those of a file that goes on
are among the chunks of the file before.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

from tracekit.formats.grouping import LineOf, Rows
from tracekit.formats.options import ImportOptions
from tracekit.formats.rows import RowReader
from tracekit.formats.source import Source
from tracekit.formats.turns import Labels
from tracekit.trace.chunks import Routings


@dataclass
class RowFile:
    """The rows of one file.

    Attributes
    ----------
    source : Source
    rows : iterator of Rows
    labels : Labels
        What the prompts of the rows are called; none is known where the rows do not say it.
    line_of : callable
        As for `RowReader`.
    """

    source: Source
    rows: Iterator[Rows]
    labels: Labels
    line_of: LineOf


def read_in_order(files: Sequence[RowFile], options: ImportOptions) -> list[Source]:
    """Return the sources of the files, whose chunks are to be read one source after the other."""
    waiting = deque(files)
    for file in files:
        file.source.chunks = _chunks(file, waiting, options)
    return [file.source for file in files]


def _chunks(file: RowFile, waiting: deque[RowFile], options: ImportOptions) -> Iterator[Routings]:
    if waiting and waiting[0] is file:  # else it went on with a file before
        rows = _Joined(waiting)
        yield from RowReader(file.source, options, rows.line_of).chunks(rows.pieces())


class _Joined:
    """The rows of the next file, and of those after it that go on with its last prompt."""

    def __init__(self, waiting: deque[RowFile]):
        self._waiting = waiting
        self._starts: list[int] = []
        self._lines: list[LineOf] = []

    def line_of(self, number: int) -> str:
        """Return where a row is, for sentences."""
        at = bisect_right(self._starts, number) - 1
        return self._lines[at](number - self._starts[at])

    def pieces(self) -> Iterator[Rows]:
        """Yield the rows; those of all files are numbered as if they were of one."""
        first: Rows | None = None
        last: Rows | None = None
        label: object = None
        while self._waiting:
            file = self._waiting[0]
            rows = (rows for rows in file.rows if len(rows))
            begin = list(islice(rows, 1))
            n_rows = turn = 0
            if first is not None and last is not None and begin:
                same_prompt = begin[0].turn is None or label == file.labels[0] is not None
                if not (same_prompt and _goes_on(first, last, begin[0])):
                    file.rows = chain(begin, rows)
                    return
                n_rows = int(last.number[-1]) + 1
                turn = 0 if last.turn is None else int(last.turn[-1])
            self._waiting.popleft()
            self._starts.append(n_rows)
            self._lines.append(file.line_of)
            for piece in chain(begin, rows):
                label = None if piece.turn is None else file.labels[int(piece.turn[-1])]
                last = _moved(piece, n_rows, turn) if n_rows else piece
                first = last if first is None else first
                yield last


def _moved(rows: Rows, n_rows: int, first_turn: int) -> Rows:
    turn = None if rows.turn is None else rows.turn + first_turn
    return replace(rows, number=rows.number + n_rows, turn=turn)


def _goes_on(first: Rows, last: Rows, rows: Rows) -> bool:
    """Say whether rows of the same prompt stand after the last ones, and do not begin as the first.

    A file that does not go on begins with the layer, the token and the slot with which the run began.
    """
    if rows.columns().keys() != last.columns().keys():
        return False
    layer, token = int(rows.layer[0]), int(rows.token[0])
    slots = 0 if rows.slot is None or first.slot is None else int(rows.slot[0] - first.slot[0])
    if (layer, token, slots) == (int(first.layer[0]), int(first.token[0]), 0):
        return False
    last_layer, last_token = int(last.layer[-1]), int(last.token[-1])
    if rows.passes is not None and last.passes is not None and rows.passes[0] != last.passes[-1]:
        # A later pass has later tokens: runs whose passes are counted on may begin at a late token each.
        return bool(rows.passes[0] > last.passes[-1] and token > last_token)
    is_next = token == last_token + 1 or (layer, token) == (last_layer, last_token)
    return layer > last_layer or is_next
