"""The part files of a recording: passes gathered in memory, then closed as one part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.trace import checks, order
from tracekit.trace.columns import NULLS, empty, empty_table, from_numpy, to_numpy
from tracekit.trace.encode import write_rows
from tracekit.trace.facts import TraceFacts
from tracekit.trace.rows import TableRows
from tracekit.trace.schema import ROUTING_FILE, STEPS_FILE
from tracekit.trace.storage import part_name

# Passes are written before they take more memory than this, whenever the caller flushes.
MOST_BYTES = 16 << 20
# A part that is smaller is written anew with the next passes, so that a long recording has not a
# file for every flush; a larger one is closed.
PART_BYTES = 2 << 20

Columns = Mapping[str, Any]

# Lists that are there or not as a whole; in other lists an element alone can be unknown.
WHOLE_LISTS = frozenset(("logits", "gate_input", "embedding"))
PLACE = ("turn", "pass", "phase", "step")


def pass_bytes(routing: Columns, steps: Columns) -> int:
    """Return how much memory the arrays of a pass take."""
    return sum(getattr(v, "nbytes", 0) for part in (routing, steps) for v in part.values())


class PartWriter:
    """Gathers passes and writes them as parts, each of the routings and then of the steps.

    Parameters
    ----------
    folder : Path
        Where the parts go; may be changed between flushes.
    facts : TraceFacts
    routing_schema, steps_schema : pa.Schema

    Attributes
    ----------
    schemas : dict
        The schema of each file.
    filled : set of str
        The columns that ever had a value.
    written : bool
        Whether a pass is on the disk.
    """

    def __init__(
        self, folder: Path, facts: TraceFacts, routing_schema: pa.Schema, steps_schema: pa.Schema
    ):
        self.folder = folder
        self.schemas = {ROUTING_FILE: routing_schema, STEPS_FILE: steps_schema}
        self.filled: set[str] = set()
        self.written = False
        self._facts = replace(facts, complete=False)
        self._part = 0
        self._tables = {file: empty_table(schema) for file, schema in self.schemas.items()}
        self._passes: dict[str, list[Columns]] = {ROUTING_FILE: [], STEPS_FILE: []}
        self._bytes = 0
        self._last_pass: int | None = None

    def add(self, routing: Columns, steps: Columns) -> None:
        """Take one whole pass; see `TraceWriter.write_pass`."""
        self._passes[ROUTING_FILE].append(routing)
        self._passes[STEPS_FILE].append(steps)
        self._bytes += pass_bytes(routing, steps)
        if self._bytes >= MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered; when this returns, it is on the disk.

        Raises
        ------
        TraceError
            A pass is not as a reader would accept it.
        TracekitError
            The part cannot be written; what was flushed before is kept.
        """
        if not self._passes[STEPS_FILE]:
            return
        new = {file: self._table(file) for file in self.schemas}
        self._check(new[ROUTING_FILE], new[STEPS_FILE])
        for file, table in new.items():
            self._tables[file] = pa.concat_tables([self._tables[file], table]).combine_chunks()
            rows = TableRows(self._tables[file])
            write_rows(self._path(file), self.schemas[file], rows)
            self._passes[file] = []
        self.written = True
        self._bytes = 0
        self._last_pass = int(new[STEPS_FILE]["pass"][-1].as_py())
        if sum(table.nbytes for table in self._tables.values()) >= PART_BYTES:
            self._part += 1
            self._tables = {file: empty_table(schema) for file, schema in self.schemas.items()}

    def _path(self, file: str) -> Path:
        return self.folder / part_name(file, self._part)

    def _check(self, routing: pa.Table, steps: pa.Table) -> None:
        """Refuse what a reader of the finished trace would refuse."""
        rows = {name: to_numpy(routing[name]) for name in (*PLACE, "layer")}
        places = {name: to_numpy(steps[name]) for name in PLACE}
        order.check_routing(self._where(ROUTING_FILE), rows, self._facts)
        order.check_steps(self._where(STEPS_FILE), places, rows)
        first = int(places["pass"][0])
        if self._last_pass is not None and first != self._last_pass + 1:
            raise ValueError(f"pass {first} was written after pass {self._last_pass}")

    def _where(self, file: str) -> checks.Where:
        return checks.Where(str(self._path(file)), self._tables[file].num_rows)

    def _table(self, file: str) -> pa.Table:
        passes = self._passes[file]
        schema = self.schemas[file]
        unknown = {name for columns in passes for name in columns} - set(schema.names)
        if unknown:
            raise ValueError(f"{file} has no column {', '.join(sorted(unknown))}")
        counts = [len(columns["step"]) for columns in passes]
        where = self._where(file)
        arrays = []
        for field in schema:
            values, valid = _gather(field, [c.get(field.name) for c in passes], counts)
            arrays.append(from_numpy(values, field.type, sum(counts), valid))
            if values is not None:
                self.filled.add(field.name)
                rows = valid if field.name in WHOLE_LISTS else None
                checks.check_values(where, field.name, values, rows, self._facts)
        return pa.Table.from_arrays(arrays, schema=schema)


def _gather(
    field: pa.Field, given: Sequence[Any], counts: Sequence[int]
) -> tuple[Any, np.ndarray | None]:
    """Join what each pass gives for a column; return the values and which are not null."""
    if all(values is None for values in given):
        if not field.nullable:
            raise ValueError(f"the column {field.name!r} must be given")
        return None, None
    if pa.types.is_binary(field.type):
        pairs = zip(given, counts, strict=True)
        return [v for values, n in pairs for v in ([None] * n if values is None else values)], None
    null = NULLS.get(field.name, 0)
    joined = empty(field.type, sum(counts))
    present = np.ones(len(joined), dtype=bool)
    at = 0
    for values, count in zip(given, counts, strict=True):
        joined[at : at + count] = null if values is None else values
        present[at : at + count] = values is not None
        at += count
    if field.name in WHOLE_LISTS:
        empty_rows = np.flatnonzero(np.isnan(joined[:, 0]))
        present[empty_rows] &= ~np.isnan(joined[empty_rows]).all(axis=1)
        return joined, present
    if not field.nullable:
        return joined, present
    return joined, ~np.isnan(joined) if joined.dtype.kind == "f" else joined != null
