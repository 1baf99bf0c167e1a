"""Writing traces: a recording that survives being killed, and a finished trace in one go."""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from tracekit.trace import storage
from tracekit.trace.atomic import sync_names, write_facts, writing
from tracekit.trace.columns import empty_table, from_numpy
from tracekit.trace.encode import write_groups, write_rows
from tracekit.trace.errors import TracekitError
from tracekit.trace.facts import TraceFacts
from tracekit.trace.folder import TraceFolder
from tracekit.trace.parts import WHOLE_LISTS, Columns, PartWriter, pass_bytes
from tracekit.trace.reader import Trace
from tracekit.trace.rows import FileRows, TableRows
from tracekit.trace.schema import (
    LAYERS_FILE,
    ROUTING_FILE,
    STEPS_FILE,
    layers_schema,
    routing_schema,
    steps_schema,
)

# Passes may wait for the encoder up to this much memory; then `write_pass` waits for it.
MOST_WAITING_BYTES = 64 << 20


class TraceWriter:
    """Writes a trace as it is recorded.

    Passes go to part files (`routing-00000.parquet` …) every `flush_ms`, each part written whole and
    renamed; if the process is killed, `Trace.open` reads every part. `close` makes one file of them
    and marks the trace complete. Used as a context manager, an exception leaves an incomplete trace
    with all that was written, or nothing if nothing was.

    Parameters
    ----------
    path : str or Path
        The ``.trace`` directory to make.
    facts : TraceFacts
        May be replaced (``writer.facts = …``) up to `close`, for instance to add a prompt.
    top_k : int
        Experts of a routing, as in ``facts.model``.
    n_expert : int, optional
        Record router logits, this many a routing.
    n_embd : int, optional
        Record gate inputs and token embeddings, this many values each.
    gate_dtype : {"f32", "f16"}
        Precision of the gate inputs.
    force : bool
        Replace the trace that is at `path`; it stays until the new one has its first part.
    flush_ms : float
        Write a part when the last was written so long ago; 0: with every pass.
    threaded : bool
        Encode and write on a thread of its own. What goes wrong there is raised by the next call.

    Raises
    ------
    UsageError
        Something is at `path` already.
    TracekitError
        The place cannot be written to.
    """

    def __init__(
        self,
        path: str | Path,
        facts: TraceFacts,
        *,
        top_k: int,
        n_expert: int | None = None,
        n_embd: int | None = None,
        gate_dtype: str = "f32",
        force: bool = False,
        flush_ms: float = 300.0,
        threaded: bool = True,
    ):
        if top_k != facts.model.top_k:
            raise ValueError(f"top_k = {top_k}, but the facts say {facts.model.top_k}")
        self.path = Path(path)
        self.facts = facts
        schemas = routing_schema(top_k, n_expert, n_embd, gate_dtype), steps_schema(n_embd)
        self._folder = TraceFolder(self.path, force)
        try:
            self._parts = PartWriter(self._folder.now, facts, *schemas)
            write_facts(self._folder.now, replace(facts, complete=False))
            if not os.path.lexists(self.path):
                self._publish()
        except BaseException:
            self._folder.remove()
            raise
        self._flush_s = flush_ms / 1000
        self._flushed_at = time.monotonic()
        self._executor = ThreadPoolExecutor(1, "tracekit-writer") if threaded else None
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._waiting_bytes = 0
        self._failed: BaseException | None = None
        self._closed = False

    # ---- what a recorder calls -------------------------------------------------------------

    def write_layers(self, layers: pa.Table | Sequence[Mapping[str, Any]]) -> None:
        """Write the table of layers; may be called again with more of them.

        Parameters
        ----------
        layers : pa.Table or sequence of mappings
            The columns of ``layers_schema()``: `layer`, and where known `expert_bytes`,
            `dense_bytes` and the arrays `router_matrix` [n_expert, n_embd], `router_bias`,
            `selection_bias`, `norm_weight`.

        Raises
        ------
        TracekitError
            It, or an earlier pass, cannot be written.
        """
        table = layers if isinstance(layers, pa.Table) else layers_table(layers)
        self._submit(0, self._write_layers, table)

    def write_pass(self, routing: Columns, steps: Columns) -> None:
        """Write one whole pass.

        The arrays are taken over, not copied: do not write into them afterwards.

        Parameters
        ----------
        routing : mapping
            Columns of ``routing.parquet``, rows in (layer, step) order: `step` [n], `layer` [n],
            `experts` [n, k], `turn`, `pass` and `phase` as arrays or single numbers; optionally
            `weights` [n, k] (NaN: unknown), `residency` and `dropped` [n, k] (255: unknown),
            `logits` [n, n_expert], `gate_input` [n, n_embd] (a row of nothing but NaN: null). None
            or absent: all null.
        steps : mapping
            Columns of ``steps.parquet``, one row for each token of the pass: `step` [m], `turn`,
            `pass`, `phase`; optionally `token`, `piece` (list of bytes), the times (NaN: null),
            the counts (-1: null) and `embedding` [m, n_embd].

        Raises
        ------
        TracekitError
            An earlier pass cannot be written; what was closed as a part before is kept.
        """
        self._submit(pass_bytes(routing, steps), self._parts.add, routing, steps)
        if time.monotonic() - self._flushed_at >= self._flush_s:
            self._flushed_at = time.monotonic()
            self._submit(0, self._flush_parts)

    def flush(self) -> None:
        """Close what was written as a part; when this returns, it survives a kill.

        Raises
        ------
        TracekitError
        """
        self._submit(0, self._flush_parts)
        self._wait(0)

    def close(self, complete: bool = True, ended: str | None = None) -> None:
        """End the recording and make one file of its parts.

        Parameters
        ----------
        complete : bool
            False leaves the parts as they are and the trace marked incomplete.
        ended : str, optional
            Why: ``"length"``, ``"end of text"``, ``"interrupted"``.

        Raises
        ------
        TracekitError
            What was closed as a part before is kept, in a trace marked incomplete.
        """
        if self._closed:
            return
        try:
            self._finish()
            self.facts = replace(self.facts, complete=complete, ended=ended)
            if not self._folder.published:
                self._publish()
            if complete:
                self._compact(self._folder.now)
            else:
                write_facts(self._folder.now, self.facts)
        except BaseException:
            self._let_go()
            raise
        self._folder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            # What went wrong is on its way to the caller; keep what can be kept.
            with suppress(TracekitError):
                self._finish()
            self._let_go()

    # ---- on the writer's thread ------------------------------------------------------------

    def _write_layers(self, table: pa.Table) -> None:
        write_layers(self._folder.now, table)

    def _flush_parts(self) -> None:
        self._parts.flush()
        if self._parts.written and not self._folder.published:
            self._publish()

    def _publish(self) -> None:
        self._folder.publish()
        self._parts.folder = self._folder.now

    # ---- between the threads ---------------------------------------------------------------

    def _submit(self, n_bytes: int, work: Callable[..., None], *args: Any) -> None:
        if self._closed:
            raise ValueError("the writer is closed")
        if self._failed is not None:
            raise self._failed
        if self._executor is None:
            try:
                work(*args)
            except BaseException as error:
                self._failed = error
                raise
            return
        self._waiting.append((self._executor.submit(work, *args), n_bytes))
        self._waiting_bytes += n_bytes
        self._wait(MOST_WAITING_BYTES)

    def _wait(self, most_bytes: int) -> None:
        """Take back what is done, and wait until at most `most_bytes` are still to be written."""
        while self._waiting:
            future, n_bytes = self._waiting[0]
            if not (future.done() or most_bytes == 0 or self._waiting_bytes > most_bytes):
                return
            self._failed = future.exception()
            if self._failed is not None:
                raise self._failed
            self._waiting.popleft()
            self._waiting_bytes -= n_bytes

    def _finish(self) -> None:
        try:
            self.flush()
        finally:
            self._closed = True
            if self._executor is not None:
                self._executor.shutdown(cancel_futures=True)

    def _let_go(self) -> None:
        """Leave what was written in its place, and nothing where nothing was."""
        if self._parts.written and self._folder.published:
            self._folder.close()
        else:
            self._folder.remove()

    def _compact(self, folder: Path) -> None:
        """Make one file of the parts; until ``trace.json`` says complete, the parts count."""
        parts = {file: storage.parts(folder, file) for file in (ROUTING_FILE, STEPS_FILE)}
        for file, schema in self._parts.schemas.items():
            rows = FileRows(parts[file]) if parts[file] else TableRows(empty_table(schema))
            kept = _without_empty_lists(schema, self._parts.filled.__contains__)
            write_rows(folder / file, kept, rows)
        if not (folder / LAYERS_FILE).exists():
            write_layers(folder, layers_table([]))
        write_facts(folder, self.facts)
        with writing(folder):
            sync_names(folder)
            for path in (*parts[ROUTING_FILE], *parts[STEPS_FILE]):
                path.unlink()


def layers_table(layers: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the table of layers for one mapping a layer; what a mapping lacks is null."""
    schema = layers_schema()
    arrays = []
    for field in schema:
        given = [layer.get(field.name) for layer in layers]
        if pa.types.is_list(field.type):
            arrays.append(from_numpy(given, field.type, len(given)))
            continue
        values = np.array([-1 if value is None else value for value in given], dtype=np.int64)
        valid = np.array([value is not None for value in given], dtype=bool)
        arrays.append(from_numpy(values, field.type, len(given), valid))
    return pa.Table.from_arrays(arrays, schema=schema)


def write_layers(folder: Path, table: pa.Table) -> None:
    """Write ``layers.parquet``, with a row group for each layer if it carries router matrices.

    Raises
    ------
    TracekitError
    """
    n_rows = table.num_rows
    heavy = "router_matrix" in table.column_names and table["router_matrix"].null_count < n_rows
    step = 1 if heavy else max(1, n_rows)
    groups = (table.slice(row, step) for row in range(0, n_rows, step))
    write_groups(folder / LAYERS_FILE, table.schema, groups)


def _without_empty_lists(schema: pa.Schema, has: Callable[[str], bool]) -> pa.Schema:
    """Leave out logits, gate inputs and embeddings that are all null: they would be slow to skip."""
    return pa.schema([f for f in schema if f.name not in WHOLE_LISTS or has(f.name)])


def write_trace(trace: Trace, path: str | Path, force: bool = False) -> None:
    """Write a whole trace, in bounded memory; nothing half-written is left if it fails.

    Parameters
    ----------
    trace : Trace
    path : str or Path
        The ``.trace`` directory to make.
    force : bool
        Replace the trace that is at `path`.

    Raises
    ------
    UsageError
        Something is at `path` already.
    TracekitError
        The trace cannot be written there.
    """
    with TraceFolder(Path(path), force) as folder:
        write_layers(folder.now, trace.layers)
        for file in (ROUTING_FILE, STEPS_FILE):
            rows = trace.rows(file)
            write_rows(folder.now / file, _without_empty_lists(rows.schema, rows.has_values), rows)
        write_facts(folder.now, trace.facts)
        folder.publish()
