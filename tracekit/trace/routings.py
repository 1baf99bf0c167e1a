"""The routings of a trace: its passes, its layers, and its columns whole or in blocks.

In: the columns of ``routing.parquet``. Out: arrays, and sentences about what is wrong with them. Of a
large trace no column is held as a whole unless somebody asks for it.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from tracekit.trace import order, typecheck
from tracekit.trace.checked import CheckedColumns
from tracekit.trace.pass_table import PassTable, Piece, distinct, whole_passes
from tracekit.trace.schema import routing_schema

# All columns that a trace can have. Others are their author's, and not checked.
COLUMNS = frozenset(routing_schema(1, 1, 1, layer_times=True).names)
PLACE = ("turn", "pass", "phase", "step", "layer")
# Rows whose order is checked at a time: a check needs some 100 bytes a row for a moment.
CHECKED_ROWS = 1 << 18


class RoutingTable:
    """The routings of a trace.

    Parameters
    ----------
    columns : CheckedColumns
        Of ``routing.parquet``.
    """

    def __init__(self, columns: CheckedColumns):
        self.columns = columns

    @cached_property
    def passes(self) -> PassTable:
        """The passes, in order; read piece by piece."""
        return PassTable.joined([piece.passes for piece in self._pieces()])

    def check(self, complete: bool, most_bytes: int) -> None:
        """Check the routings; columns of more than `most_bytes` are checked as they are read.

        Parameters
        ----------
        complete : bool
            An incomplete trace may lack the last layers of its last pass.
        most_bytes : int

        Raises
        ------
        TraceError
        """
        columns = self.columns
        typecheck.check_routing_types(columns.file, columns.rows.schema, columns.model)
        columns.check(COLUMNS, most_bytes)
        layers = None
        found = []
        for piece in self._pieces():
            if not piece.is_last and layers is None:
                layers = self._layers()  # a decode pass must have those of later pieces, too
            cut = piece.is_last and not complete
            order.check_routing(columns.where(piece.first_row), piece.rows, not cut, layers)
            found.append(piece.passes)
        self.passes = PassTable.joined(found)

    def _pieces(self) -> Iterator[Piece]:
        """Yield the places of all rows in pieces of whole passes; one without rows if there are none."""
        if self.columns.holds(PLACE):
            spans = [(0, self.columns.rows.n_rows)]
        else:
            spans = self.columns.spans(PLACE, CHECKED_ROWS)
        return whole_passes(self.columns.read_each(PLACE, spans), len(spans))

    def _layers(self) -> np.ndarray:
        spans = self.columns.spans(["layer"], CHECKED_ROWS)
        found = [distinct(part["layer"]) for part in self.columns.read_each(["layer"], spans)]
        return distinct(np.concatenate(found))

    def in_blocks(
        self, names: Sequence[str], phase: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Iterate over the rows in blocks that never cut a decode pass; only those of `phase`.

        Raises
        ------
        TraceError
            A value is not what it should be, or the file is damaged.
        """
        ends = np.array([stop for _, stop in self.columns.spans(names)], np.int64)
        spans = list(self.passes.blocks(ends))
        if phase is None:
            yield from self.columns.read_each(names, spans)
            return
        found = [self.passes.of_phase(phase, *span) for span in spans]
        cuts = [cut for cut in found if cut is not None]
        blocks = self.columns.read_each(names, [(cut.start, cut.stop) for cut in cuts])
        for cut, block in zip(cuts, blocks, strict=True):
            if cut.wanted is None:
                yield block
            else:
                yield {name: values[cut.wanted] for name, values in block.items()}
