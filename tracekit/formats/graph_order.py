"""``layer,expert`` in the order of the graph, and nothing else: every expert that was selected.

In: rows with a layer and an expert, k for each token at each layer. Out: the run. An engine writes them
as it computes: layer by layer, and within a layer token by token. So a pass ends where the layer falls
back, and where a layer has several times k rows, the pass has several tokens.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tracekit.formats.engine_passes import OF_PASSES, OF_PHASES, PassOrder, Runs
from tracekit.formats.format import Format, register
from tracekit.formats.from_arrow import ArrowRows
from tracekit.formats.given import File, Given, missing
from tracekit.formats.grouping import LineOf, Rows, joined
from tracekit.formats.names import named
from tracekit.formats.options import ImportOptions
from tracekit.formats.rows import GATHERED_SLOTS, RowReader
from tracekit.formats.source import Source, one_after_another
from tracekit.formats.tables import CsvTable, header_of
from tracekit.trace import TraceError
from tracekit.trace.schema import DECODE, PREFILL

HEADER = ("layer", "expert")
PLACES = {"passes": OF_PASSES, "phases": OF_PHASES}
_TWO_NUMBERS = re.compile(rb"\s*\d{1,9}\s*,\s*\d{1,9}\s*")


@register
class LayerExpert(Format):
    """Reader of rows `layer,expert` in the order in which a model computed them."""

    name = "layer-expert"
    summary = "layer,expert in the order of the graph, with a header or without"
    told_by = "two columns, the layer and the expert"
    lacks = "tokens, prompts, phases, weights, sizes, the number of experts a routing"
    is_universal = True
    needs = ("--top-k",)

    def sniff(self, head: bytes) -> bool:
        """Say whether a file has the two columns and no others."""
        first = head.splitlines()[0] if head.splitlines() else b""
        columns, names, _ = header_of(head)
        is_named = len(columns) == len(HEADER) and not names.missing(("layer", "experts"))
        return is_named or _TWO_NUMBERS.fullmatch(first) is not None

    def source(self, given: Given, options: ImportOptions) -> Source:
        """Read the files; each begins with a new turn."""
        top_k = options.given_top_k
        if top_k is None:
            raise missing(given, "--top-k K", "how many experts a token selects at a layer")
        sources = [_source(file, options, top_k) for file in given.files]
        return one_after_another(given.name, sources)


def _source(file: File, options: ImportOptions, top_k: int) -> Source:
    columns, names, separator = header_of(file.head)
    length = len(file.head.splitlines(keepends=True)[0])
    if not columns or names.missing(("layer", "experts")):
        columns, names, separator, length = list(HEADER), named(HEADER), ",", 0
    table = CsvTable(file.path, length, columns, separator)
    arrow = ArrowRows(str(file.path), names, table.place, codes_appear_in_order=True)
    source = Source(str(file.path), ())
    pieces = (arrow.rows(piece) for piece in table.pieces(names, source))
    source.chunks = RowReader(source, options, table.place).chunks(
        with_tokens(pieces, top_k, source, table.place)
    )
    return source


def with_tokens(
    pieces: Iterator[Rows], top_k: int, source: Source, line_of: LineOf
) -> Iterator[Rows]:
    """Yield rows with their turn, pass, phase and token, which their order shows.

    Parameters
    ----------
    pieces : iterator of Rows
        In the order of the graph; their tokens are passed over.
    top_k : int
    source : Source
        Of which they are; it is told what is inferred, and that the file ends early.
    line_of : callable
        As for `RowReader`.

    Raises
    ------
    TraceError
        The layer changes before a routing has its k experts.
    """
    source.inferred |= PLACES
    order = _Order(source, top_k, line_of)
    waiting: list[Rows] = []
    n_slots, most = 0, GATHERED_SLOTS
    for piece in pieces:
        waiting.append(piece)
        n_slots += piece.experts.size
        if n_slots < most:
            continue
        rows = joined(waiting)
        falls = np.flatnonzero(np.diff(rows.layer) < 0)
        if len(falls):
            end = int(falls[-1]) + 1
            yield order.placed(rows.taken(slice(0, end)))
            rows = rows.taken(slice(end, None))
        waiting, n_slots = [rows], rows.experts.size
        most = max(GATHERED_SLOTS, 2 * n_slots)
    if n_slots:
        yield order.placed(order.without_cut_routing(joined(waiting)))


class _Order:
    """The turn and the token at which rows that follow go on."""

    def __init__(self, source: Source, top_k: int, line_of: LineOf):
        self._source, self._top_k, self._line_of = source, top_k, line_of
        self._turns = PassOrder()
        self._pass = 0

    def without_cut_routing(self, rows: Rows) -> Rows:
        """Leave out the last rows of the file if they are fewer than k."""
        left = 0 if rows.experts.ndim == 2 else len(rows) % self._top_k
        if left:
            self._source.cut(
                f"{self._source.name} is incomplete: its last routing has {left} of "
                f"{self._top_k} experts, and is left out."
            )
        return rows.taken(slice(0, len(rows) - left))

    def placed(self, rows: Rows) -> Rows:
        """Return whole passes with their places."""
        if not len(rows):
            return rows
        k = 1 if rows.experts.ndim == 2 else self._top_k
        self._check_routings(rows, k)
        layer = rows.layer[::k]
        begins = np.append(True, np.diff(layer) < 0)
        if self._pass == 0 and (layer == layer[0]).all():  # the only one: each token is a pass
            begins = np.ones(len(layer), np.bool_)
        runs = Runs.of(layer, begins)
        n_tokens, pass_of_row = runs.n_tokens, runs.pass_of_row
        decode = n_tokens == 1
        turn, first_step = self._turns.places(n_tokens, decode)
        # Where a layer has fewer tokens than others, as the last one often does, it has the last.
        token = (first_step + n_tokens)[pass_of_row] - runs.from_end
        passes = pass_of_row + self._pass
        self._pass += len(n_tokens)
        return replace(
            rows,
            turn=np.repeat(turn[pass_of_row], k),
            passes=np.repeat(passes, k),
            phase=np.repeat(np.where(decode, DECODE, PREFILL)[pass_of_row], k),
            token=np.repeat(token, k),
        )

    def _check_routings(self, rows: Rows, k: int) -> None:
        whole = len(rows) // k * k
        routings = rows.layer[:whole].reshape(-1, k)
        wrong = (routings != routings[:, :1]).any(axis=1)
        at = int(wrong.argmax()) * k if wrong.any() else whole
        if at < len(rows):
            n_same = int(np.argmax(np.append(rows.layer[at : at + k] != rows.layer[at], True)))
            raise TraceError(
                f"{self._line_of(int(rows.number[at]))}: layer {rows.layer[at]} has {n_same} "
                f"experts here before the layer changes, where top_k = {k} are due; rows are "
                "missing, or top_k is wrong: correct it."
            )
