"""`Trace`: a trace opened for reading, column by column."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.trace import checks, order, storage, typecheck
from tracekit.trace.columns import NULLS, to_numpy, valid_rows
from tracekit.trace.digest import digest
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import TraceFacts
from tracekit.trace.html import trace_html
from tracekit.trace.rows import Rows, TableRows, all_null, width
from tracekit.trace.schema import (
    DECODE,
    LAYERS_FILE,
    ROUTING_FILE,
    STEPS_FILE,
    routing_schema,
    steps_schema,
)
from tracekit.trace.steps import steps_of

# Small columns that nearly every question needs: read once, kept.
KEPT = ("turn", "pass", "phase", "step", "layer", "experts")
# All that a trace can have; other columns are their author's, and not checked.
COLUMNS = frozenset(routing_schema(1, 1, 1).names)
STEP_COLUMNS = frozenset(steps_schema(1).names)
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
    ):
        self.facts = facts
        self.path = path
        self.warnings = list(warnings)
        self.name = name or (str(path) if path else "the trace")
        self._layers = layers
        self._routing = routing
        self._steps = steps
        self._locate: checks.Locate | None = None
        self._kept: dict[str, np.ndarray] = {}
        self._unchecked: set[str] = set()  # too large to check on open

    def __repr__(self) -> str:
        return f"<Trace {self.name}: {self.facts.model.name}, {self.n_rows} routings>"

    def _repr_html_(self) -> str:
        return trace_html(self)

    @classmethod
    def open(cls, path: str | Path, validate: bool = True) -> "Trace":
        """Open the trace directory `path`.

        A recording that was killed is read up to the last pass that it wrote whole; `warnings`
        then says so.

        Parameters
        ----------
        path : str or Path
        validate : bool
            Check the schema and every value of the columns up to 64 MiB. Larger columns are
            checked as they are read, so that a huge trace opens fast.

        Raises
        ------
        TraceError
            The directory is no trace, or the trace is not as it should be; the sentence names the
            file, the row, the column, the value and the mend.
        """
        path = Path(path)
        found = storage.find(path)
        trace = cls(found.facts, found.layers, found.routing, found.steps, path, found.warnings)
        if validate:
            trace.validate()
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
        locate: Callable[[int, int], str] | None = None,
    ) -> "Trace":
        """Make a trace of tables in memory and validate it.

        Parameters
        ----------
        facts : TraceFacts
        layers, routing, steps : pa.Table
            Of the columns that ``tracekit.trace.schema`` lists. Without `steps`, one row stands
            for each (turn, step) of `routing`, with nothing but its place.
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
        trace = cls(
            facts,
            TableRows(layers),
            TableRows(routing),
            TableRows(given),
            warnings=warnings,
            name=name,
        )
        trace._locate = locate
        facts.check(trace.name)
        trace._check_routing(checked_bytes=routing.nbytes)
        if steps is None:
            trace._steps = TableRows(steps_of(trace.routing(KEPT)))
        trace._check_rest()
        trace._locate = None  # it may hold the text of a file
        return trace

    # ---- size ------------------------------------------------------------------------------

    @property
    def n_rows(self) -> int:
        """How many routings the trace holds."""
        return self._routing.n_rows

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
        """False of a recording that was cut short."""
        return self.facts.complete

    @property
    def n_turns(self) -> int:
        """How many turns have a routing."""
        return len(np.unique(self.routing(["turn"])["turn"]))

    @property
    def budget_bytes(self) -> int | None:
        """The cache budget the engine ran with; None where the trace does not say."""
        return self.facts.engine.cache_bytes if self.facts.engine else None

    # ---- rows ------------------------------------------------------------------------------

    def rows(self, file: str) -> Rows:
        """Return the rows of ``routing.parquet``, ``steps.parquet`` or ``layers.parquet``.

        For code that moves whole tables; questions go to `routing`, `iter_routing` and `steps`.
        """
        files = {ROUTING_FILE: self._routing, STEPS_FILE: self._steps, LAYERS_FILE: self._layers}
        return files[file]

    def has(self, column: str) -> bool:
        """Say whether a column of ``routing.parquet`` is there and not all null; cheap."""
        return self._routing.has_values(column)

    def has_steps(self, column: str) -> bool:
        """Say whether a column of ``steps.parquet`` is there and not all null; cheap."""
        return self._steps.has_values(column)

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
        wanted = [c for c in columns if c not in self._kept]
        read = self._block(wanted, 0, self.n_rows) if wanted else {}
        self._kept.update((c, _locked(read[c])) for c in wanted if c in KEPT)
        return {c: self._kept[c] if c in self._kept else read[c] for c in columns}

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
        kept = self.routing(["pass", "phase"])
        passes, phases = kept["pass"], kept["phase"]
        start = 0
        for end in self._routing.group_ends:
            stop = int(end)
            if stop < self.n_rows and phases[stop] == DECODE:
                stop = int(np.searchsorted(passes, passes[stop], side="left"))
            if stop <= start:
                continue
            mask = None if phase is None else phases[start:stop] == phase
            if mask is None or mask.all():
                yield self._block(columns, start, stop)
            elif mask.any():
                block = self._block(columns, start, stop)
                yield {name: values[mask] for name, values in block.items()}
            start = stop

    def _block(self, columns: Sequence[str], start: int, stop: int) -> dict[str, np.ndarray]:
        self._require(columns, self._routing, "routings")
        table = self._routing.read(columns, start, stop)
        block = {}
        for name in columns:
            if name in self._unchecked:
                values = self._checked(ROUTING_FILE, table, name, start)
            else:
                values = to_numpy(table[name], NULLS.get(name, 0))
            block[name] = values.astype(np.float32) if values.dtype == np.float16 else values
        return block

    def _checked(self, file: str, table: pa.Table, name: str, first_row: int = 0) -> np.ndarray:
        column = table[name]
        where = self._where(file, first_row)
        if name in ("logits", "gate_input"):
            where = replace(where, locate=self._token_place)
        valid = valid_rows(column)
        values = to_numpy(column, NULLS.get(name, 0))
        checks.check_nulls(where, name, column, valid)
        checks.check_values(where, name, values, valid, self.facts)
        return values

    def steps(
        self, columns: Sequence[str], start: int = 0, stop: int | None = None
    ) -> dict[str, np.ndarray]:
        """Return columns of the steps: one row for each (turn, step), in that order.

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
            are -1. `piece` is an array of bytes objects, None where null.

        Raises
        ------
        TraceError
            A column is not in the trace or cannot be read.
        """
        self._require(columns, self._steps, "steps")
        table = self._steps.read(columns, start, stop)
        return {c: self._checked(STEPS_FILE, table, c, start) for c in columns}

    @property
    def n_steps(self) -> int:
        """How many (turn, step) the trace holds."""
        return self._steps.n_rows

    @cached_property
    def n_decoded(self) -> int:
        """How many tokens were decoded."""
        return int(np.count_nonzero(self.steps(["phase"])["phase"] == DECODE))

    def _require(self, columns: Sequence[str], rows: Rows, file: str) -> None:
        for column in columns:
            if column not in rows.schema.names:
                raise TraceError(
                    f"{self.name} has no column {column!r} in its {file}; "
                    f"it has: {', '.join(rows.schema.names)}."
                )

    # ---- layers ----------------------------------------------------------------------------

    @property
    def layers(self) -> pa.Table:
        """The table of layers, router matrices included."""
        return self._layers.read(self._layers.schema.names)

    @cached_property
    def moe_layers(self) -> np.ndarray:
        """Model numbers of the layers that routed, ascending, int16 [L].

        Of a trace without a single routing, those that have an expert size. A layer with experts
        that never ran (a draft head) is not among them: no token touches it.
        """
        seen = np.bincount(self.routing(["layer"])["layer"], minlength=1)
        if not seen.any():
            layers = self.layer_columns
            return _locked(layers["layer"][layers["expert_bytes"] >= 0])
        return _locked(np.flatnonzero(seen).astype(np.int16))

    @cached_property
    def layer_columns(self) -> dict[str, np.ndarray]:
        """The scalar columns of the layers: `layer`, `expert_bytes`, `dense_bytes` (-1: null)."""
        columns = ["layer", "expert_bytes", "dense_bytes"]
        table = self._layers.read(columns)
        return {c: _locked(self._checked(LAYERS_FILE, table, c)) for c in columns}

    @property
    def expert_bytes(self) -> np.ndarray:
        """Bytes of one expert of each of `moe_layers`, int64 [L].

        Raises
        ------
        TraceError
            The size of a layer's experts is not known: taken as nothing, that layer would always
            hit.
        """
        known = self.layer_columns
        size = dict(zip(known["layer"].tolist(), known["expert_bytes"].tolist(), strict=True))
        sizes = [size.get(layer, -1) for layer in self.moe_layers.tolist()]
        if -1 in sizes:
            layer = self.moe_layers[sizes.index(-1)]
            raise TraceError(
                f"{self.name} does not say how many bytes an expert of layer {layer} has "
                "(expert_bytes), so a cache cannot be replayed; add the size to its layers."
            )
        return np.array(sizes, dtype=np.int64)

    @property
    def bank_bytes(self) -> int:
        """Bytes of all experts of all MoE layers; errors are those of `expert_bytes`."""
        return int(self.expert_bytes.sum()) * self.n_expert

    @property
    def token_cycle_bytes(self) -> int:
        """Bytes that one token touches over all layers; errors are those of `expert_bytes`."""
        return int(self.expert_bytes.sum()) * self.top_k

    def layer_array(self, layer: int, name: str) -> np.ndarray | None:
        """Return an array of a layer, None where the trace does not carry it.

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
            The array has not as many values as the model's facts ask for.
        """
        row = np.flatnonzero(self.layer_columns["layer"] == layer)
        if len(row) == 0 or name not in self._layers.schema.names:
            return None
        value = self._layers.read([name], int(row[0]), int(row[0]) + 1)[name]
        if value.null_count:
            return None
        values = to_numpy(value.chunk(0).flatten(), np.nan)
        where = self._where(LAYERS_FILE).at(row[0])
        return checks.shape_layer_array(where, layer, name, values, self.facts.model)

    # ---- trust -----------------------------------------------------------------------------

    @cached_property
    def digest(self) -> str:
        """A sha256 of what the trace says, the same for a file and for its import."""
        return digest(self.facts.model, self.layer_columns, lambda name: self.routing([name])[name])

    def validate(self) -> None:
        """Check schema and values; see `open`.

        Raises
        ------
        TraceError
        """
        self._check_routing(CHECKED_ON_OPEN_BYTES)
        self._check_rest()

    def _check_routing(self, checked_bytes: int) -> None:
        schema = self._routing.schema
        typecheck.check_routing_types(self._file(ROUTING_FILE), schema, self.facts.model)
        rows = {f.name: self.n_rows * width(f.type) for f in schema if f.name in COLUMNS}
        small = [c for c in rows if c in KEPT or rows[c] <= checked_bytes]
        table = self._routing.read(small)
        for column in small:
            if column in KEPT:
                self._kept[column] = _locked(self._checked(ROUTING_FILE, table, column))
            elif not all(all_null(chunk) for chunk in table[column].chunks):
                self._checked(ROUTING_FILE, table, column)
        self._unchecked = set(rows).difference(small)
        order.check_routing(self._where(ROUTING_FILE), self.routing(KEPT), self.facts)

    def _check_rest(self) -> None:
        steps_file, layers_file = self._file(STEPS_FILE), self._file(LAYERS_FILE)
        typecheck.check_steps_types(steps_file, self._steps.schema, self.facts.model)
        typecheck.check_layers_types(layers_file, self._layers.schema)
        checks.check_layers(self._where(LAYERS_FILE), self.layer_columns, self.facts)
        # Embeddings can be large: they are checked as they are read.
        known = [c for c in self._steps.schema.names if c in STEP_COLUMNS - {"embedding"}]
        steps = self.steps(known)
        order.check_steps(self._where(STEPS_FILE), steps, self.routing(KEPT))

    def _file(self, file: str) -> str:
        return str(self.path / file) if self.path else f"{self.name} ({file})"

    def _token_place(self, row: int, slot: int) -> str:
        """Name a routing by its token and layer too: what a model computed is looked up there."""
        kept = self.routing(["turn", "step", "layer"])
        token = ", ".join(f"{name} {values[row]}" for name, values in kept.items())
        return f"{self._where(ROUTING_FILE).at(row, slot)} ({token})"

    def _where(self, file: str, first_row: int = 0) -> checks.Where:
        locate = self._locate if file == ROUTING_FILE else None
        return checks.Where(self._file(file), first_row, locate)


def _locked(values: np.ndarray) -> np.ndarray:
    """Make `values` read-only: the trace keeps them, and answers the next question with them."""
    values.flags.writeable = False
    return values
