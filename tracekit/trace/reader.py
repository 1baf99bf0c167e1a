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
from tracekit.trace.digest import digest
from tracekit.trace.facts import TraceFacts
from tracekit.trace.html import trace_html
from tracekit.trace.layers import LayerTable
from tracekit.trace.rows import Rows, TableRows
from tracekit.trace.schema import LAYERS_FILE, ROUTING_FILE, STEPS_FILE, absent_types
from tracekit.trace.steps import StepTable, steps_of

# Small columns that nearly every question needs: read once, then kept in memory.
CACHED = ("turn", "pass", "phase", "step", "layer", "experts")
# On open, columns up to this size are checked value by value; larger ones as they are read.
CHECKED_ON_OPEN_BYTES = 64 << 20


class Trace:
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
        self._routing = self._columns(ROUTING_FILE, routing, locate)
        self._set_steps(steps)
        self._layer_table = LayerTable(self._columns(LAYERS_FILE, layers), self.name)

    def _columns(self, file: str, rows: Rows, locate: Locate | None = None) -> CheckedColumns:
        called = str(self.path / file) if self.path else f"{self.name} ({file})"
        absent = absent_types(file, self.facts.model.top_k)
        if file == ROUTING_FILE:  # `validate` says which columns are checked as they are read
            return CheckedColumns(rows, called, self.facts.model, CACHED, (), locate, absent)
        return CheckedColumns(rows, called, self.facts.model, may_be_absent=absent)

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
        """Open the trace directory `path`.

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
        path = Path(path)
        files = storage.read_directory(path)
        trace = cls(files.facts, files.layers, files.routing, files.steps, path, files.warnings)
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
        validation.check_routing_file(trace._routing, trace.complete, routing.nbytes)
        if steps is None:
            table = steps_of(trace.routing(CACHED))
            trace._set_steps(TableRows(table))
        trace._validate_layers_and_steps()
        trace._routing.locate = None  # it may hold the text of a file
        return trace

    # ---- size ------------------------------------------------------------------------------

    @property
    def n_rows(self) -> int:
        """How many routings the trace has."""
        return self._routing.rows.n_rows

    @property
    def n_steps(self) -> int:
        """How many (pass, step) the trace has."""
        return self._step_table.columns.rows.n_rows

    @property
    def n_layer(self) -> int:
        """Layers of the model, dense ones too."""
        return self.facts.model.n_layer

    @property
    def n_expert(self) -> int:
        """Experts of one MoE layer."""
        return self.facts.model.n_expert

    @property
    def top_k(self) -> int:
        """Experts of one routing."""
        return self.facts.model.top_k

    @property
    def complete(self) -> bool:
        """Whether the recording came to its end; False if it was cut short."""
        return self.facts.complete

    @property
    def n_turns(self) -> int:
        """How many turns have a routing."""
        return len(np.unique(self.routing(["turn"])["turn"]))

    @property
    def n_decoded(self) -> int:
        """How many tokens were decoded and stayed; drafted ones that were rejected do not count."""
        return self._step_table.n_decoded

    @property
    def most_decoded_at_once(self) -> int:
        """The most tokens of one decode pass: more than 1 where drafted tokens were verified."""
        return self._step_table.most_decoded_at_once

    @property
    def kept(self) -> np.ndarray:
        """Which steps stayed, bool [n_steps], in the order of `steps`; see `StepTable.kept`."""
        return self._step_table.kept

    @property
    def budget_bytes(self) -> int | None:
        """The cache budget the engine ran with; None where the trace does not say."""
        return self.facts.engine.cache_bytes if self.facts.engine else None

    # ---- rows ------------------------------------------------------------------------------

    def rows(self, file: str) -> Rows:
        """Return the rows of ``routing.parquet``, ``steps.parquet`` or ``layers.parquet``.

        For code that moves whole tables; questions go to `routing`, `iter_routing`, `steps`.
        """
        files = {
            ROUTING_FILE: self._routing,
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
        return self._routing.rows.has_values(column)

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
        self._routing.require(columns, self.name, "routings")
        return self._routing.whole(columns)

    def iter_routing(
        self, columns: Sequence[str], phase: int | None = None
    ) -> Iterator[dict[str, np.ndarray]]:
        """Iterate over the routings block by block, in bounded memory.

        A block is about a row group. The rows of a decode pass are never in two blocks; a prefill
        pass too large for one is split between rows.

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
        self._routing.require(columns, self.name, "routings")
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

    # ---- layers ----------------------------------------------------------------------------

    @property
    def layers(self) -> pa.Table:
        """The table of layers, router matrices included."""
        return self.table(LAYERS_FILE)

    @cached_property
    def moe_layers(self) -> np.ndarray:
        """Model numbers of the layers that routed, ascending, int16 [L].

        A layer with experts that never ran (a draft head) is not among them: no token touches it.
        In a trace without a single routing, they are the layers that have an expert size.
        """
        return self._layer_table.routed(self.routing(["layer"])["layer"])

    @property
    def layer_columns(self) -> dict[str, np.ndarray]:
        """The scalar columns of the layers: `layer`, `expert_bytes`, `dense_bytes` (-1: null)."""
        return self._layer_table.scalars

    @property
    def expert_bytes(self) -> np.ndarray:
        """Bytes of one expert of each of `moe_layers`, int64 [L].

        Raises
        ------
        TraceError
            The size of a layer's experts is not known. Taken as 0, that layer would always hit.
        """
        return self._layer_table.expert_bytes(self.moe_layers)

    @property
    def bank_bytes(self) -> int:
        """Bytes of all experts of all MoE layers; errors are those of `expert_bytes`."""
        return int(self.expert_bytes.sum()) * self.n_expert

    @property
    def token_cycle_bytes(self) -> int:
        """Bytes that one token touches over all layers; errors are those of `expert_bytes`."""
        return int(self.expert_bytes.sum()) * self.top_k

    def layer_array(self, layer: int, name: str) -> np.ndarray | None:
        """Return an array of a layer, None where the trace does not have it.

        Parameters
        ----------
        layer : int
            The model's own number of the layer.
        name : {"router_matrix", "router_bias", "selection_bias", "norm_weight"}

        Returns
        -------
        float32 array or None
            [n_expert, n_embd] of the router matrix, [n_embd] of the norm weight, [n_expert] else.

        Raises
        ------
        TraceError
            The array has another number of values than the model's facts ask for, or one that is
            not finite.
        """
        return self._layer_table.array(layer, name)

    # ---- identity and validation -----------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """A sha256 of what the trace says, the same for a file and for its import."""
        return digest(self.facts.model, self.layer_columns, lambda name: self.routing([name])[name])

    def validate(self, most_bytes_checked: int = CHECKED_ON_OPEN_BYTES) -> None:
        """Check schema and values; arguments and errors are those of `open`."""
        validation.check_routing_file(self._routing, self.complete, most_bytes_checked)
        self._validate_layers_and_steps()

    def _validate_layers_and_steps(self) -> None:
        lacks = validation.check_layers_and_steps(
            self.name, self.facts, self.routing(CACHED), self._layer_table, self._step_table
        )
        self.warnings += [sentence for sentence in lacks if sentence not in self.warnings]
