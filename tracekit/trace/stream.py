"""Writing a trace from chunks of whole passes, in bounded memory, each checked as it comes.

In: chunks, one after the other, then the facts. Out: a finished ``.trace`` directory, or nothing.
"""

from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from tracekit.trace import checks
from tracekit.trace.aside import ColumnsAside
from tracekit.trace.atomic import write_facts
from tracekit.trace.chunk_tables import (
    Embed,
    routing_table,
    schema_of,
    with_embeddings,
    without_null_columns,
)
from tracekit.trace.chunks import PLACE, Numbered, Routings
from tracekit.trace.columns import to_numpy
from tracekit.trace.encode import GrowingGroups, group_writer, write_layers, write_rows
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import TraceFacts
from tracekit.trace.file_rows import FileRows
from tracekit.trace.folder import TraceFolder
from tracekit.trace.layers import check_table
from tracekit.trace.order import LACKS_ROWS, OrderSoFar
from tracekit.trace.pass_table import distinct
from tracekit.trace.passes import pass_starts
from tracekit.trace.rows import WithColumn
from tracekit.trace.schema import (
    DECODE,
    LAYERS_FILE,
    ROUTING_FILE,
    STEPS_FILE,
    steps_schema,
)
from tracekit.trace.seal import sealed
from tracekit.trace.writer import kept_of

# Chunks that wait for the encoder; beyond it `add` waits.
MOST_WAITING = 2
# Steps that are given their embeddings at once.
EMBEDDED_STEPS = 1024


class TraceStream:
    """Writes the chunks of a run; a context manager that leaves nothing behind if one is refused.

    Parameters
    ----------
    path : Path
        The ``.trace`` directory to make.
    numbered : Numbered
        Orders and numbers the chunks.
    facts : TraceFacts
        As far as they are known; its model's sizes limit the values until `finish`.
    force : bool
        Replace the trace that is at `path`.
    embed : callable, optional
        Gives the embeddings of tokens, `n_embd` values of the model each, which the steps carry then.
    """

    def __init__(
        self,
        path: Path,
        numbered: Numbered,
        facts: TraceFacts,
        force: bool = False,
        embed: Embed | None = None,
    ):
        self._path, self._force, self._embed = path, force, embed
        self._numbered = numbered
        self._facts = facts
        self._order = OrderSoFar()
        self._decoded_layers: set[frozenset[int]] = set()
        self._last = (-1, -1)  # turn and step
        self._goes_back = False

    def __enter__(self) -> Self:
        self._stack = ExitStack()
        self._folder = self._stack.enter_context(TraceFolder(self._path, self._force))
        self._files = self._stack.enter_context(ExitStack())
        self._writers: dict[str, GrowingGroups] = {}
        self._aside = ColumnsAside(self._folder.now, self._stack)
        # Encoding takes about as long as reading and checking; a thread does it meanwhile.
        executor = ThreadPoolExecutor(1, "tracekit-writer")
        self._stack.callback(executor.shutdown, cancel_futures=True)
        self._executor = executor
        self._waiting: deque[Future[None]] = deque()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._stack.__exit__(kind, error, traceback)

    def add(self, chunk: Routings, complete: bool = True) -> None:
        """Check and write one chunk.

        Parameters
        ----------
        chunk : Routings
        complete : bool
            False: the last decode pass of the run, which this chunk has, may lack its last layers.

        Raises
        ------
        TraceError
            A reader of the finished trace would refuse it.
        TracekitError
            It cannot be written.
        """
        if not len(chunk):
            return
        columns, locate = self._numbered.add(chunk)
        steps = self._numbered.steps(columns)
        self._check(columns, steps, checks.Where(str(self._path), 0, locate), complete)
        if not self._writers:
            self._schema = schema_of(columns)
            of_steps = steps_schema(self._facts.model.n_embd if self._embed else None)
            for file, schema in ((ROUTING_FILE, self._schema), (STEPS_FILE, of_steps)):
                writer = self._files.enter_context(group_writer(self._folder.now / file, schema))
                self._writers[file] = GrowingGroups(writer, schema)
        self._waiting.append(self._executor.submit(self._write, columns, steps))
        self._wait(MOST_WAITING)

    def _write(self, columns: Mapping[str, np.ndarray], steps: pa.Table) -> None:
        """Write a chunk; on the writer's thread."""
        starts = pass_starts(columns["pass"])
        phases = columns["phase"][starts]
        n_layers = len(distinct(columns["layer"]))
        routing = routing_table(columns, self._schema)
        self._writers[ROUTING_FILE].write(routing, starts, phases, n_layers)
        self._aside.add(columns)
        if self._embed is None:
            self._write_steps(steps)
            return
        for start in range(0, len(steps), EMBEDDED_STEPS):  # embeddings of a chunk may be large
            self._write_steps(with_embeddings(steps.slice(start, EMBEDDED_STEPS), self._embed))

    def _write_steps(self, steps: pa.Table) -> None:
        starts = pass_starts(to_numpy(steps["pass"]))
        phases = to_numpy(steps["phase"])[starts]
        self._writers[STEPS_FILE].write(steps, starts, phases, 1)

    def _wait(self, most: int) -> None:
        """Wait until at most so many chunks are still to be written."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def finish(self, facts: TraceFacts, layers: pa.Table) -> None:
        """Write the facts and the table of layers, and put the trace in its place.

        Raises
        ------
        TraceError
            The facts do not agree with the routings, or a decode pass lacks a layer.
        TracekitError
        """
        self._check_layers()
        self._wait(0)
        folder = self._folder.now
        of_layers = check_table(layers, str(self._path / LAYERS_FILE), facts.model)
        # Hashing takes about as long as waiting for the disk.
        sha256 = self._executor.submit(self._aside.digest, facts.model, of_layers)
        for writer in self._writers.values():
            writer.flush()
        self._files.close()
        self._leave_out_null_columns(folder / ROUTING_FILE)
        if self._goes_back:
            self._write_kept(folder / STEPS_FILE)
        write_layers(folder, layers)
        write_facts(folder, sealed(folder, facts, sha256.result()))
        self._folder.publish()

    def _check(
        self,
        columns: Mapping[str, np.ndarray],
        steps: pa.Table,
        where: checks.Where,
        complete: bool,
    ) -> None:
        for name, values in columns.items():
            valid = None
            if name in ("logits", "gate_input"):
                valid = ~np.isnan(values).all(axis=1)
            checks.check_values(checks.Column(where, name, values, valid), self._facts.model)
        places = {name: to_numpy(steps[name]) for name in PLACE if name != "layer"}
        rows = {name: columns[name] for name in PLACE}
        where_steps = replace(where, file=STEPS_FILE, locate=None)
        self._order.check(where, rows, where_steps, places, complete)
        turn, step = places["turn"], places["step"]
        if len(turn):  # a chunk that goes on with a pass may have no further step
            self._goes_back |= turn[0] == self._last[0] and step[0] <= self._last[1]
            self._last = int(turn[-1]), int(step[-1])
        if (columns["phase"] == DECODE).any():
            self._decoded_layers.add(frozenset(np.unique(columns["layer"]).tolist()))

    def _check_layers(self) -> None:
        """Refuse decode passes that lack a layer which only other chunks have."""
        seen = self._numbered.seen
        for layers in self._decoded_layers:
            lacking = seen.layers - layers
            if lacking:
                raise TraceError(
                    f"{self._path}: some decode passes lack layer {min(lacking)}, which other "
                    f"passes route; {LACKS_ROWS}."
                )

    def _leave_out_null_columns(self, path: Path) -> None:
        """Write the routings again if a column was given, but null in every row."""
        schema = without_null_columns(self._schema, self._numbered.seen.columns)
        if schema != self._schema:
            write_rows(path, schema, FileRows(path))

    def _write_kept(self, path: Path) -> None:
        """Write the steps again: a pass took back steps of a chunk before its own."""
        rows = FileRows(path)
        write_rows(path, rows.schema, WithColumn(rows, rows.schema.field("kept"), kept_of(rows)))
