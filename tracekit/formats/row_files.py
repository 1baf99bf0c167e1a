"""Files of rows that were cut anywhere: a file may go on with prompts that those before it began.

In: the rows of each file, in the order of the files. Out: the chunks of each; those of a file that goes on
are among the chunks of the file before.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from tracekit.formats.grouping import LineOf, Rows
from tracekit.formats.options import ImportOptions
from tracekit.formats.rows import RowReader
from tracekit.formats.source import Source
from tracekit.formats.turns import Labels
from tracekit.trace import TraceError
from tracekit.trace.chunks import Routings


@dataclass
class RowFile:
    """The rows of one file.

    Attributes
    ----------
    source : Source
    rows : iterator of Rows
    labels : Labels
        What the prompts of the rows are called. None is known where the rows do not say it, or where
        their tokens were counted in each file: such a file goes on with no other.
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
    begun: dict[object, _Begun] = {}
    for file in files:
        file.source.chunks = _chunks(file, waiting, begun, options)
    return [file.source for file in files]


def _chunks(
    file: RowFile,
    waiting: deque[RowFile],
    begun: "dict[object, _Begun]",
    options: ImportOptions,
) -> Iterator[Routings]:
    if waiting and waiting[0] is file:  # else it went on with a file before
        rows = _Joined(waiting, begun)
        yield from RowReader(file.source, options, rows.line_of).chunks(rows.pieces())


class _At(NamedTuple):
    """Where a row stands; 0 for what the file does not say."""

    layer: int
    token: int
    slot: int
    number_of_pass: int

    @classmethod
    def of(cls, rows: Rows, row: int) -> "_At":
        """Return where one of `rows` stands."""
        optional = (rows.slot, rows.passes)
        return cls(
            int(rows.layer[row]),
            int(rows.token[row]),
            *(0 if values is None else int(values[row]) for values in optional),
        )


class _Begun(NamedTuple):
    """Where a file begins that goes on with none before it."""

    file: str
    at: _At


class _Joined:
    """The rows of the next file, and of those after it that go on with one of its prompts.

    Parameters
    ----------
    waiting : deque of RowFile
        The files that were not read yet.
    begun : dict
        By the label of the prompt with which they begin, the files that went on with none before them.
    """

    def __init__(self, waiting: deque[RowFile], begun: dict[object, _Begun]):
        self._waiting = waiting
        self._begun = begun
        self._starts: list[int] = []
        self._lines: list[LineOf] = []
        self._labels = Labels()
        self._first: _At | None = None
        self._columns: set[str] = set()
        self._last: dict[int, _At] = {}  # of each prompt; without labels all rows are of one

    def line_of(self, number: int) -> str:
        """Return where a row is, for sentences."""
        at = bisect_right(self._starts, number) - 1
        return self._lines[at](number - self._starts[at])

    def pieces(self) -> Iterator[Rows]:
        """Yield the rows; those of all files are numbered as if they were of one.

        Raises
        ------
        TraceError
            A file ends where one begins that was read before it.
        """
        n_rows = 0
        name = ""
        while self._waiting:
            file = self._waiting[0]
            rows = (piece for piece in file.rows if len(piece))
            begin = list(islice(rows, 1))
            numbers: list[int] = []  # of the file's own labels
            heads = [self._moved(piece, file.labels, numbers, n_rows) for piece in begin]
            if heads and not self._goes_on(heads[0], bool(numbers)):
                file.rows = chain(begin, rows)
                break
            self._waiting.popleft()
            name = file.source.name
            self._starts.append(n_rows)
            self._lines.append(file.line_of)
            first_row = n_rows
            for piece in chain(begin, rows):
                moved = self._moved(piece, file.labels, numbers, first_row)
                if self._waiting or self._begun:
                    self._note(moved)
                n_rows = int(moved.number[-1]) + 1
                yield moved
        self._refuse_reversed(name)

    def _refuse_reversed(self, name: str) -> None:
        """Refuse a file that ends where one begins that was read before; note where this one begins."""
        labels = self._labels.since(0)
        if self._first is None or not labels:
            return
        for turn, last in self._last.items():
            begun = self._begun.get(labels[turn])
            if begun is not None and begun.at.token == last.token + 1:
                raise TraceError(
                    f"{name} ends within prompt {labels[turn]}, and {begun.file} goes on with it; give "
                    "the files in the order in which they were written."
                )
        self._begun.setdefault(labels[self._first_turn], _Begun(name, self._first))

    def _moved(self, rows: Rows, labels: Labels, numbers: list[int], n_rows: int) -> Rows:
        new = labels.since(len(numbers))
        numbers += self._labels.numbers(np.arange(len(new)), new).tolist()
        if not n_rows:  # those of the first file stay
            return rows
        turn = rows.turn
        if turn is not None and numbers:
            turn = np.array(numbers)[turn]
        return replace(rows, number=rows.number + n_rows, turn=turn)

    def _note(self, rows: Rows) -> None:
        """Keep where the last rows of each prompt stand."""
        if self._first is None:
            self._first = _At.of(rows, 0)
            self._first_turn = 0 if rows.turn is None else int(rows.turn[0])
            self._columns = set(rows.columns())
        if rows.turn is None:
            self._last[0] = _At.of(rows, -1)
            return
        ends = np.append(np.flatnonzero(rows.turn[1:] != rows.turn[:-1]), len(rows) - 1)
        last = dict(zip(rows.turn[ends].tolist(), ends.tolist(), strict=True))
        self._last |= {turn: _At.of(rows, row) for turn, row in last.items()}

    def _goes_on(self, rows: Rows, has_labels: bool) -> bool:
        """Say whether rows stand after the last ones of their prompt, and do not begin as the first.

        A file that does not go on begins with the layer, the token and the slot with which the run began.
        """
        if self._first is None:
            return True
        if rows.turn is not None and not has_labels:
            return False
        at = _At.of(rows, 0)
        last = self._last.get(0 if rows.turn is None else int(rows.turn[0]))
        if last is None or at[:3] == self._first[:3] or set(rows.columns()) != self._columns:
            return False
        if at.number_of_pass > last.number_of_pass:
            # Runs whose passes are counted on may begin at a late token each.
            return at.token > last.token
        if at.number_of_pass < last.number_of_pass:
            return has_labels and at.layer > last.layer  # each file has its own layers
        is_next = at.token == last.token + 1 or at[:2] == last[:2]
        return at.layer > last.layer or is_next
