"""`Trace`: a trace opened for reading, column by column.

In: a ``.trace`` directory, or tables in memory. Out: its sizes, its columns as numpy arrays, the arrays
of its layers. What the values mean for a cache or a predictor, this module does not know.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.trace import storage, validation
from tracekit.trace.checked import CheckedColumns
from tracekit.trace.checks import Locate
from tracekit.trace.digest import digest, sizes_digest
from tracekit.trace.facts import TraceFacts
from tracekit.trace.html import trace_html
from tracekit.trace.layers import LayerTable
from tracekit.trace.missing import missing_rows
from tracekit.trace.routings import RoutingTable
from tracekit.trace.rows import Rows, TableRows
from tracekit.trace.schema import LAYERS_FILE, ROUTING_FILE, STEPS_FILE, absent_types
from tracekit.trace.sizes import Sizes
from tracekit.trace.steps import StepTable, steps_of
from tracekit.trace.urls import UrlPath, is_url

# Small columns that nearly every question needs: read once, then kept in memory.
CACHED = ("turn", "pass", "phase", "step", "layer", "experts")
# On open, columns up to this size are checked value by value; larger ones as they are read. If those
# of `CACHED` are larger together, they are not kept in memory either, until somebody asks for one.
CHECKED_ON_OPEN_BYTES = 64 << 20


class Trace(Sizes):
    """A trace: what a model routed, layer by layer and token by token.

    Use `Trace.open` for a ``.trace`` directory and `Trace.from_tables` for tables in memory.

    Attributes
    ----------
    facts : TraceFacts
        The content of ``trace.json``.
    path : Path or None
        The directory; None of a trace in memory.
    name : str
        What sentences call the trace.
    warnings : list of str
        What a reader of results should know, one plain sentence each: an interrupted recording.
    """

    def __init__(
        self,
        facts: TraceFacts,
        layers: Rows,
        routing: Rows,
        steps: Rows,
        path: Path | None = None,
        warnings: Sequence[str] = (),
        name: str | None = None,
        locate: Locate | None = None,
    ):
        self.facts = facts
        self.path = path
        self.warnings = list(warnings)
        self.name = name or (str(path) if path else "the trace")
        self._routing = RoutingTable(self._columns(ROUTING_FILE, routing, locate))
        self._set_steps(steps)
        self._layer_table = LayerTable(self._columns(LAYERS_FILE, layers), self.name)

    def _columns(self, file: str, rows: Rows, locate: Locate | None = None) -> CheckedColumns:
        called = str(self.path / file) if self.path else f"{self.name} ({file})"
        absent = absent_types(file, self.facts.model.top_k)
        if file == ROUTING_FILE:  # `validate` says which columns are checked as they are read
            return CheckedColumns(rows, called, self.facts.model, CACHED, (), locate, absent)
        cached = StepTable.CACHED if file == STEPS_FILE else ()
        return CheckedColumns(rows, called, self.facts.model, cached, may_be_absent=absent)

    def _set_steps(self, rows: Rows) -> None:
        self._step_table = StepTable(self._columns(STEPS_FILE, rows))

    def __repr__(self) -> str:
        return f"<Trace {self.name}: {self.facts.model.name}, {self.n_rows} routings>"

    _repr_html_ = trace_html

    @classmethod
    def open(
        cls,
        path: str | Path,
        validate: bool = True,
        *,
        most_bytes_checked: int = CHECKED_ON_OPEN_BYTES,
    ) -> "Trace":
        """Open the trace directory `path`, or the one that a URL names.

        A recording that was killed is read up to the last pass that it wrote as a whole; `warnings`
        then says so. ``tracekit.open_trace`` opens files of other formats and ``bundled:NAME``, too.

        Parameters
        ----------
        path : str or Path
        validate : bool
            Check the schema and the values.
        most_bytes_checked : int
            Columns of the routings up to this size are checked at once. Larger ones are checked as
            they are read, so that a huge trace opens fast.

        Raises
        ------
        TraceError
            The directory is no trace, or the trace is not as it should be; the sentence names the
            file, the row, the column, the value and the remedy.
        """
        if isinstance(path, str) and is_url(path):
            path = UrlPath(path)
        if isinstance(path, UrlPath):
            from tracekit.trace.remote import read_trace

            found, place, name = read_trace(path), None, str(path)
        else:
            place, name = Path(path), None
            found = storage.read_directory(place)
        trace = cls(
            found.facts, found.layers, found.routing, found.steps, place, found.warnings, name
        )
        if validate:
            trace.validate(most_bytes_checked)
        return trace

    @classmethod
    def from_tables(
        cls,
        facts: TraceFacts,
        layers: pa.Table,
        routing: pa.Table,
        steps: pa.Table | None = None,
        *,
        name: str | None = None,
        warnings: Sequence[str] = (),
        locate: Locate | None = None,
    ) -> "Trace":
        """Make a trace of tables in memory and validate it.

        Parameters
        ----------
        facts : TraceFacts
        layers, routing, steps : pa.Table
            With the columns that ``tracekit.trace.schema`` lists. Without `steps`, each (turn, step)
            of `routing` gets one row, in which only its place is not null.
        name : str, optional
            What error messages call the trace, for instance the file it was imported from.
        warnings : sequence of str
        locate : callable, optional
            Maps (row, slot) of `routing` to the words that tell a user where that is.

        Raises
        ------
        TraceError
            As for `open`.
        """
        given = routing.slice(0, 0) if steps is None else steps
        tables = TableRows(layers), TableRows(routing), TableRows(given)
        trace = cls(facts, *tables, warnings=warnings, name=name, locate=locate)
        facts.check(trace.name)
        trace._routing.check(trace.complete, routing.nbytes)
        if steps is None:
            table = steps_of(trace.routing(CACHED))
            trace._set_steps(TableRows(table))
        trace._validate_layers_and_steps()
        trace._routing.columns.locate = None  # it may hold the text of a file
        return trace

    # ---- rows ------------------------------------------------------------------------------

    def rows(self, file: str) -> Rows:
        """Return the rows of ``routing.parquet``, ``steps.parquet`` or ``layers.parquet``.

        For code that moves whole tables; questions go to `routing`, `iter_routing`, `steps`.
        """
        files = {
            ROUTING_FILE: self._routing.columns,
            STEPS_FILE: self._step_table.columns,
            LAYERS_FILE: self._layer_table.columns,
        }
        return files[file].rows

    def table(self, file: str) -> pa.Table:
        """Return all columns of ``routing.parquet``, ``steps.parquet`` or ``layers.parquet``.

        It may be larger than memory where the trace has logits or gate inputs.
        """
        rows = self.rows(file)
        return rows.read(rows.schema.names)

    def has(self, column: str) -> bool:
        """Say whether a column of ``routing.parquet`` exists and is not all null; cheap."""
        return self._routing.columns.rows.has_values(column)

    def has_steps(self, column: str) -> bool:
        """Say whether a column of ``steps.parquet`` exists and is not all null; cheap."""
        return self._step_table.columns.rows.has_values(column)

    def routing(self, columns: Sequence[str]) -> dict[str, np.ndarray]:
        """Return whole columns of the routings, in (pass, layer, step) order.

        Parameters
        ----------
        columns : sequence of str
            Names of ``routing.parquet``. `logits` and `gate_input` can be larger than memory:
            `iter_routing` reads them piece by piece.

        Returns
        -------
        dict of str to numpy.ndarray
            Scalars [rows]; lists [rows, width]. Null weights, logits and gate inputs are NaN, null
            residency and dropped flags 255. Half-precision gate inputs come as float32. The arrays
            may be read-only: copy one to change it.

        Raises
        ------
        TraceError
            A column is not in the trace or cannot be read.
        """
        self._routing.columns.require(columns, self.name, "routings")
        return self._routing.columns.whole(columns)

    def iter_routing(
        self, columns: Sequence[str], phase: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Iterate over the routings block by block, in bounded memory.

        A block is one row group or more, of some 16 MiB. The rows of a decode pass are never in two
        blocks; a prefill pass too large for one is split between rows.

        Parameters
        ----------
        columns : sequence of str
            As for `routing`.
        phase : {0, 1}, optional
            Only rows of this phase (0 prefill, 1 decode).

        Yields
        ------
        dict of str to numpy.ndarray
            As of `routing`.
        """
        self._routing.columns.require(columns, self.name, "routings")
        yield from self._routing.in_blocks(columns, phase)

    def steps(
        self, columns: Sequence[str], start: int = 0, stop: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return columns of the steps: one row for each (pass, step), in that order.

        Parameters
        ----------
        columns : sequence of str
            Names of ``steps.parquet``.
        start, stop : int, optional
            Only these rows: embeddings can be larger than memory.

        Returns
        -------
        dict of str to numpy.ndarray
            Null milliseconds and embeddings are NaN; null token ids, read bytes, lookups and hits
            are -1. `piece` is an array of bytes objects, None where null. `kept` is as `kept`, also
            of a trace whose file does not have it.

        Raises
        ------
        TraceError
            A column is not in the trace or cannot be read.
        """
        return self._step_table.read(columns, start, stop, self.name)

    @property
    def layers(self) -> pa.Table:
        """The table of layers, router matrices included."""
        return self.table(LAYERS_FILE)

    # ---- identity and validation -----------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """A sha256 of what the trace says, the same for a file and for its import.

        It is what ``trace.json`` says, if that is of these files; otherwise it is computed.
        """
        kept = self.facts.digest
        if (
            kept is not None
            and kept.routing_bytes == self._routing.columns.rows.n_bytes
            and kept.sizes_sha256 == sizes_digest(self.facts.model, self.layer_columns)
        ):
            return kept.sha256
        return self.computed_digest()

    def computed_digest(self) -> str:
        """Return the digest of what the files hold, whatever ``trace.json`` says; it reads them."""
        return digest(self.facts.model, self.layer_columns, self._routing.columns.one_by_one)

    def validate(self, most_bytes_checked: int = CHECKED_ON_OPEN_BYTES) -> None:
        """Check schema and values; arguments and errors are those of `open`."""
        self._routing.check(self.complete, most_bytes_checked)
        self._validate_layers_and_steps()

    def _validate_layers_and_steps(self) -> None:
        validation.check_layers_and_steps(
            self.facts, self.passes, self._layer_table, self._step_table
        )
        lacks = self.missing_rows()
        if lacks is not None and lacks not in self.warnings:
            self.warnings.append(lacks)

    def missing_rows(self) -> str | None:
        """Return the sentence about rows that the trace lacks, None if none are seen to be missing."""
        return missing_rows(
            self.name,
            self.facts,
            self.passes,
            lambda start, stop: self._routing.columns.read(["step", "layer"], start, stop),
            self._step_table.places,
            lambda: self.kept,
            self.layer_columns,
        )
