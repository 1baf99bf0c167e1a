"""Writing traces: a recording that survives being killed, and a finished trace at once.

In: passes as arrays, one after the other, or a `Trace`. Out: a ``.trace`` directory. This module knows
nothing of models or engines.
"""

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

from tracekit.trace.atomic import sync_names, write_facts, writing
from tracekit.trace.columns import NULLS, to_numpy
from tracekit.trace.encode import write_layers, write_rows
from tracekit.trace.errors import TracekitError
from tracekit.trace.facts import TraceFacts
from tracekit.trace.file_rows import FileRows
from tracekit.trace.folder import TraceFolder
from tracekit.trace.layers import check_table, layers_table
from tracekit.trace.parts import (
    GATHERED_BYTES,
    PART_BYTES,
    WHOLE_LISTS,
    PartWriter,
    PassColumns,
    pass_bytes,
    rows_of,
)
from tracekit.trace.passes import kept_steps
from tracekit.trace.reader import Trace
from tracekit.trace.rows import Rows, WithColumn
from tracekit.trace.schema import (
    LAYERS_FILE,
    ROUTING_FILE,
    STEPS_FILE,
    routing_schema,
    steps_schema,
)
from tracekit.trace.seal import sealed

# Passes that wait for the encoder may take this much memory; beyond it `write_pass` waits.
MOST_WAITING_BYTES = 64 << 20


class TraceWriter:
    """Writes a trace as it is recorded.

    Passes go to part files (`routing-00000.parquet` …) every `flush_ms`. Each part is written as a
    whole and renamed; if the process is killed, `Trace.open` reads every part. `close` makes one file
    of them and marks the trace complete. As a context manager it leaves an incomplete trace if an
    exception is raised, or nothing if no pass was written.

    Parameters
    ----------
    path : str or Path
        The ``.trace`` directory to make.
    facts : TraceFacts
        May be replaced (``writer.facts = …``) until `close`, for instance to add a prompt.
    top_k : int
        Experts of a routing, as in ``facts.model``.
    n_expert : int, optional
        Record router logits, this many a routing.
    n_embd : int, optional
        Record gate inputs and token embeddings, this many values each.
    gate_dtype : {"f32", "f16"}
        Precision of the gate inputs.
    layer_times : bool
        Record how long each layer of a pass waited for its experts, and computed.
    force : bool
        Replace the trace that is at `path`; it stays until the new one has its first part.
    flush_ms : float
        Write a part when the last one is so old; 0: with every pass.
    threaded : bool
        Encode and write on a separate thread. The next call raises the errors of that thread.
    gathered_bytes, part_bytes : int
        As for `tracekit.trace.parts.PartWriter`.

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
        layer_times: bool = False,
        force: bool = False,
        flush_ms: float = 300.0,
        threaded: bool = True,
        gathered_bytes: int = GATHERED_BYTES,
        part_bytes: int = PART_BYTES,
    ):
        if top_k != facts.model.top_k:
            raise ValueError(f"top_k = {top_k}, but the facts say {facts.model.top_k}")
        self.path = Path(path)
        self.facts = facts
        routing = routing_schema(top_k, n_expert, n_embd, gate_dtype, layer_times)
        schemas = routing, steps_schema(n_embd)
        self._folder = TraceFolder(self.path, force)
        try:
            self._parts = PartWriter(self._folder.now, facts, *schemas, gathered_bytes, part_bytes)
            write_facts(self._folder.now, replace(facts, complete=False, digest=None))
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
        self._n_layers: int | None = None
        self._failed: BaseException | None = None
        self._closed = False

    # ---- what a recorder calls -------------------------------------------------------------

    def write_layers(self, layers: pa.Table | Sequence[Mapping[str, Any]]) -> None:
        """Write the table of layers; a later call replaces it.

        Parameters
        ----------
        layers : pa.Table or sequence of mappings
            The columns of ``layers_schema()``: `layer`, and where known `expert_bytes`,
            `dense_bytes` and the arrays `router_matrix` [n_expert, n_embd], `router_bias`,
            `selection_bias`, `norm_weight`.

        Raises
        ------
        TraceError
            A reader would refuse the table.
        TracekitError
            The table or an earlier pass cannot be written.
        """
        table = layers if isinstance(layers, pa.Table) else layers_table(layers)
        check_table(table, str(self.path / LAYERS_FILE), self.facts.model)
        self._submit(0, self._write_layers, table)
        self._n_layers = table.num_rows

    def write_pass(self, routing: PassColumns, steps: PassColumns) -> None:
        """Write one whole pass.

        The arrays are not copied: do not write into them afterwards.

        Parameters
        ----------
        routing : mapping
            Columns of ``routing.parquet``, rows in (layer, step) order: `step` [n], `layer` [n],
            `experts` [n, k], `turn`, `pass` and `phase` as arrays or single numbers; optionally
            `weights` [n, k] (NaN: unknown), `residency` and `dropped` [n, k] (255: unknown),
            `logits` [n, n_expert], `gate_input` [n, n_embd] (a row of nothing but NaN: null), and
            `wait_ms` and `compute_ms` [n] (NaN: null). None or absent: all null.
        steps : mapping
            Columns of ``steps.parquet``, one row for each token of the pass: `step` [m], `turn`,
            `pass`, `phase`; optionally `token`, `piece` (list of bytes), the times (NaN: null),
            the counts (-1: null), `embedding` [m, n_embd] and `kept` (False: a drafted token that
            was rejected; a step that a later pass takes back need not be marked).

        Raises
        ------
        TracekitError
            An earlier pass cannot be written; the parts before it are kept.
        """
        steps = {"kept": True, **steps}
        self._submit(pass_bytes(routing, steps), self._parts.add, routing, steps)
        if time.monotonic() - self._flushed_at >= self._flush_s:
            self._flushed_at = time.monotonic()
            self._submit(0, self._flush_parts)

    def flush(self) -> None:
        """Write a part with all passes so far; when this returns, they survive a kill.

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
            False leaves the parts as they are and marks the trace incomplete.
        ended : str, optional
            Why the recording ended: ``"length"``, ``"end of text"``, ``"interrupted"``.

        Raises
        ------
        TracekitError
            The parts so far are kept, in a trace marked incomplete.
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
            self._leave_what_is_written()
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
            # `error` goes on to the caller; an error of the last flush must not hide it.
            with suppress(TracekitError):
                self._finish()
            self._leave_what_is_written()

    # ---- on the writer's thread ------------------------------------------------------------

    def _write_layers(self, table: pa.Table) -> None:
        write_layers(self._folder.now, table)

    def _flush_parts(self) -> None:
        self._parts.flush()
        if self._parts.has_written and not self._folder.published:
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
        """Drop what is written, and wait until at most `most_bytes` are still to be written."""
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

    def _leave_what_is_written(self) -> None:
        """Leave the parts that were written; remove the directory if there are none."""
        if self._parts.has_written and self._folder.published:
            self._folder.close()
        else:
            self._folder.remove()

    def _compact(self, folder: Path) -> None:
        """Make one file of the parts; readers use the parts until ``trace.json`` says complete."""
        parts = {file: self._parts.read_back(file) for file in self._parts.schemas}
        for file, schema in self._parts.schemas.items():
            rows = rows_of(parts[file], schema)
            whole: Rows = rows
            if file == STEPS_FILE:
                whole = WithColumn(rows, schema.field("kept"), kept_of(rows))
            filled = self._parts.filled_columns.__contains__
            write_rows(folder / file, _without_empty_lists(schema, filled), whole)
        self._check_layers(folder)
        self.facts = sealed(folder, self.facts)
        write_facts(folder, self.facts)
        with writing(folder):
            sync_names(folder)
            for part in (*parts[ROUTING_FILE], *parts[STEPS_FILE]):
                part.path.unlink()

    def _check_layers(self, folder: Path) -> None:
        """Write an empty table of layers if none was given; refuse to end without the one that was."""
        path = folder / LAYERS_FILE
        if self._n_layers is None:
            write_layers(folder, layers_table([]))
        elif not path.exists() or FileRows(path).n_rows != self._n_layers:
            raise TracekitError(
                f"{path} is missing or changed since it was written. What was recorded is kept, "
                "marked incomplete; record it again."
            )


def kept_of(steps: Rows) -> np.ndarray:
    """Return which steps stayed: a later pass may have taken back what was written as kept."""
    columns = steps.read(["turn", "pass", "step", "kept"])
    turn, passes, step, kept = (
        to_numpy(columns[name], NULLS.get(name, 0)) for name in columns.column_names
    )
    return np.where(kept_steps(turn, passes, step), kept, False)


def _without_empty_lists(schema: pa.Schema, has_values: Callable[[str], bool]) -> pa.Schema:
    """Leave out logits, gate inputs and embeddings that are all null: they are slow to skip."""
    return pa.schema([f for f in schema if f.name not in WHOLE_LISTS or has_values(f.name)])


def write_trace(trace: Trace, path: str | Path, force: bool = False) -> None:
    """Write a trace in bounded memory; if that fails, nothing is left behind.

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
            rows: Rows = trace.rows(file)
            if file == STEPS_FILE:  # traces of schema version 1 lack the column
                rows = WithColumn(trace.rows(file), steps_schema().field("kept"), trace.kept)
            write_rows(folder.now / file, _without_empty_lists(rows.schema, rows.has_values), rows)
        write_facts(folder.now, sealed(folder.now, trace.facts))
        folder.publish()
