"""The passes of a trace, one entry each: what most questions ask of the places of its routings.

In: the places of routings, whole or piece by piece. Out: a table that is smaller than they are by the
number of layers times tokens a pass. This module reads nothing, and checks no value.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.trace.checks import Arrays
from tracekit.trace.passes import pass_starts
from tracekit.trace.schema import DECODE


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows `start` to `stop`; of these only where `wanted` is true, bool [n], or all if it is None."""

    start: int
    stop: int
    wanted: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class PassTable:
    """The passes, in the order of their rows.

    Attributes
    ----------
    number, turn : int32 [P]
    phase : uint8 [P]
    first_row : int64 [P]
    first_step, last_step : int32 [P]
        The smallest and the largest step of its routings.
    last_layer : int16 [P]
        The layer of its last row.
    n_in_last_layer : int64 [P]
        How many rows that layer has.
    layers : int16 [L]
        The layers that routed in any pass, ascending.
    n_rows : int
        Of all passes.
    """

    number: np.ndarray
    turn: np.ndarray
    phase: np.ndarray
    first_row: np.ndarray
    first_step: np.ndarray
    last_step: np.ndarray
    last_layer: np.ndarray
    n_in_last_layer: np.ndarray
    layers: np.ndarray
    n_rows: int

    def __len__(self) -> int:
        return len(self.number)

    @classmethod
    def of(cls, rows: Arrays, first_row: int = 0) -> "PassTable":
        """Return the passes of `rows`, the first of which is row `first_row` of the trace.

        Parameters
        ----------
        rows : mapping
            `turn`, `pass`, `phase`, `step`, `layer`, each [n], in (pass, layer, step) order.
        first_row : int
        """
        starts, n_rows = pass_starts(rows["pass"]), len(rows["pass"])
        counts = np.diff(np.append(starts, n_rows))
        last_layer = rows["layer"][starts + counts - 1]
        in_last = rows["layer"] == np.repeat(last_layer, counts)
        return cls(
            number=rows["pass"][starts],
            turn=rows["turn"][starts],
            phase=rows["phase"][starts],
            first_row=starts + first_row,
            first_step=np.minimum.reduceat(rows["step"], starts),
            last_step=np.maximum.reduceat(rows["step"], starts),
            last_layer=last_layer,
            n_in_last_layer=np.add.reduceat(in_last, starts, dtype=np.int64),
            layers=distinct(rows["layer"]),
            n_rows=first_row + n_rows,
        )

    @classmethod
    def joined(cls, parts: Sequence["PassTable"]) -> "PassTable":
        """Return the passes of `parts`, which follow each other; there is at least one."""
        if len(parts) == 1:
            return parts[0]

        def column(name: str) -> np.ndarray:
            return np.concatenate([getattr(part, name) for part in parts])

        return cls(
            number=column("number"),
            turn=column("turn"),
            phase=column("phase"),
            first_row=column("first_row"),
            first_step=column("first_step"),
            last_step=column("last_step"),
            last_layer=column("last_layer"),
            n_in_last_layer=column("n_in_last_layer"),
            layers=distinct(column("layers")),
            n_rows=parts[-1].n_rows,
        )

    @property
    def n_of_pass(self) -> np.ndarray:
        """How many rows each pass has, int64 [P]."""
        return np.diff(np.append(self.first_row, self.n_rows))

    def rows_of_phase(self, phase: int) -> int:
        """Return how many rows passes of `phase` have."""
        return int(self.n_of_pass[self.phase == phase].sum())

    def blocks(self, ends: np.ndarray) -> Iterator[tuple[int, int]]:
        """Yield the (start, stop) of blocks of rows that never cut a decode pass.

        Parameters
        ----------
        ends : int [G]
            Where the row groups end; they may have been written by another tool, and cut passes. A
            block that would end inside a decode pass ends before it.
        """
        start = 0
        for end in ends.tolist():
            stop = int(end)
            if stop < self.n_rows:
                of_pass = self._pass_at(stop)
                if self.phase[of_pass] == DECODE:
                    stop = int(self.first_row[of_pass])
            if stop > start:
                yield start, stop
                start = stop

    def of_phase(self, phase: int, start: int, stop: int) -> "Selection | None":
        """Return what rows `start` to `stop` have of `phase`; None if nothing."""
        first, last = self._pass_at(start), self._pass_at(stop - 1) + 1
        wanted = np.flatnonzero(self.phase[first:last] == phase) + first
        if not len(wanted):
            return None
        begins, ends = self.first_row, np.append(self.first_row[1:], self.n_rows)
        start = max(start, int(begins[wanted[0]]))
        stop = min(stop, int(ends[wanted[-1]]))
        inside = slice(int(wanted[0]), int(wanted[-1]) + 1)
        if len(wanted) == inside.stop - inside.start:
            return Selection(start, stop)
        counts = np.minimum(ends[inside], stop) - np.maximum(begins[inside], start)
        return Selection(start, stop, np.repeat(self.phase[inside] == phase, counts))

    def _pass_at(self, row: int) -> int:
        return int(np.searchsorted(self.first_row, row, side="right")) - 1


def distinct(layers: np.ndarray) -> np.ndarray:
    """Return which layers are among `layers` [n], ascending, int16 [L]."""
    return np.flatnonzero(np.bincount(layers)).astype(np.int16)


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows of whole passes, and those of the pass before them.

    Attributes
    ----------
    first_row : int
        The row of the trace with which `rows` begins.
    rows : mapping
    n_before : int
        How many of the rows are of the pass before, which the piece before this one had.
    is_last : bool
    """

    first_row: int
    rows: Arrays
    n_before: int
    is_last: bool

    @property
    def passes(self) -> PassTable:
        """The passes that no piece before had."""
        new = {name: values[self.n_before :] for name, values in self.rows.items()}
        return PassTable.of(new, self.first_row + self.n_before)


def whole_passes(parts: Iterable[Arrays], n_parts: int) -> Iterator[Piece]:
    """Join parts of the rows of a trace, cut anywhere, to pieces of whole passes.

    Parameters
    ----------
    parts : iterable of mappings
        With the column `pass`.
    n_parts : int
        How many there are.
    """
    kept: Arrays = {}
    first_row = n_before = 0
    for number, part in enumerate(parts, 1):
        rows = {
            n: np.concatenate((kept[n], values)) if kept else values for n, values in part.items()
        }
        if number == n_parts:
            yield Piece(first_row, rows, n_before, True)
            return
        starts = pass_starts(rows["pass"])
        end = int(starts[-1]) if len(starts) else 0  # the last pass may go on in the next part
        if end > n_before:
            whole = {name: values[:end] for name, values in rows.items()}
            yield Piece(first_row, whole, n_before, False)
            keep_from = int(starts[-2])
            first_row, n_before = first_row + keep_from, end - keep_from
        else:
            keep_from = 0
        kept = {name: values[keep_from:].copy() for name, values in rows.items()}
