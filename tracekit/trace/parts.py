"""The part files of a recording: passes are gathered in memory, then written as one part.

In: the arrays of one pass after the other, or the path of a part. Out: part files that a reader
accepts, or the rows of one. This module knows nothing of threads, nor of when a part is due.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.trace import checks
from tracekit.trace.columns import NULLS, Values, cast, empty, empty_table, to_numpy, to_table
from tracekit.trace.costs import check_costs
from tracekit.trace.encode import write_rows
from tracekit.trace.errors import TraceError, TracekitError
from tracekit.trace.facts import TraceFacts
from tracekit.trace.file_rows import FileRows
from tracekit.trace.order import OrderSoFar
from tracekit.trace.rows import Rows, TableRows
from tracekit.trace.schema import ROUTING_FILE, STEPS_FILE

# Passes are written once they take this much memory, even if nobody flushes.
GATHERED_BYTES = 16 << 20
# The next flush rewrites a smaller part together with the new passes, so that a long recording does
# not have a file for every flush. A part of this size is closed.
PART_BYTES = 2 << 20

# What a recorder gives of a pass: columns by name, as arrays, lists or single values.
PassColumns = Mapping[str, Any]

# In these lists all elements are known or none; in others a single element can be unknown.
WHOLE_LISTS = frozenset(("logits", "gate_input", "embedding"))
PLACE = ("turn", "pass", "phase", "step")


def part_name(file: str, number: int) -> str:
    """Return the name of part `number` of a file: ``routing-00000.parquet``."""
    return file.replace(".parquet", f"-{number:05d}.parquet")


def part_numbers(directory: Path, file: str) -> list[int]:
    """Return the numbers of the parts of `file` in `directory`, ascending."""
    pattern = re.compile(re.escape(file).replace(r"\.parquet", r"-(\d{5,18})\.parquet"))
    found = [int(m[1]) for each in directory.iterdir() if (m := pattern.fullmatch(each.name))]
    return sorted(n for n in set(found) if (directory / part_name(file, n)).exists())


@dataclass(frozen=True)
class Part:
    """The rows of a part file, and the pass of each, int32 [n]."""

    path: Path
    rows: FileRows
    passes: np.ndarray

    @classmethod
    def read(cls, path: Path) -> "Part":
        """Read the passes of the part at `path`.

        Raises
        ------
        TraceError
            It is missing, damaged, or has no column `pass` of whole numbers.
        """
        rows = FileRows(path)
        if "pass" not in rows.schema.names:
            raise TraceError(f"{path} lacks its column 'pass'; record the trace again.")
        kind = rows.schema.field("pass").type
        if kind != pa.int32():
            raise TraceError(
                f"{path}, column pass: its type is {kind}, but a trace needs int32; record the "
                "trace again."
            )
        return cls(path, rows, to_numpy(rows.read(["pass"])["pass"]))

    @property
    def span(self) -> "Span":
        """How many rows it has, and of which passes."""
        return span_of(self.passes)


def rows_of(parts: Sequence[Part], schema: pa.Schema) -> Rows:
    """Return the rows of `parts`, one after the other; without parts, no rows of `schema`."""
    return FileRows.joined([p.rows for p in parts]) if parts else TableRows(empty_table(schema))


class Span(NamedTuple):
    """How many rows a part has, its first pass and its last; -1 without a row."""

    n_rows: int
    first: int
    last: int


def span_of(passes: np.ndarray) -> Span:
    """Return the span of rows of these passes, ascending."""
    ends = (int(passes[0]), int(passes[-1])) if len(passes) else (-1, -1)
    return Span(len(passes), *ends)


def pass_bytes(routing: PassColumns, steps: PassColumns) -> int:
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
    gathered_bytes : int
        Passes that take this much memory are written, even if nobody flushes.
    part_bytes : int
        A part of this size is closed; a smaller one grows with the next flush.

    Attributes
    ----------
    schemas : dict
        The schema of each file.
    filled_columns : set of str
        The columns that ever had a value.
    has_written : bool
        Whether a pass is on the disk.
    """

    def __init__(
        self,
        folder: Path,
        facts: TraceFacts,
        routing_schema: pa.Schema,
        steps_schema: pa.Schema,
        gathered_bytes: int = GATHERED_BYTES,
        part_bytes: int = PART_BYTES,
    ):
        self.folder = folder
        self.schemas = {ROUTING_FILE: routing_schema, STEPS_FILE: steps_schema}
        self.filled_columns: set[str] = set()
        self.has_written = False
        self._model = facts.model
        self._gathered_bytes = gathered_bytes
        self._part_bytes = part_bytes
        self._part = 0
        self._tables = {file: empty_table(schema) for file, schema in self.schemas.items()}
        self._passes: dict[str, list[PassColumns]] = {ROUTING_FILE: [], STEPS_FILE: []}
        self._bytes = 0
        self._last_pass: int | None = None
        self._last_start_s = 0.0
        self._order = OrderSoFar()
        self._written: dict[str, list[Span]] = {file: [] for file in self.schemas}

    def add(self, routing: PassColumns, steps: PassColumns) -> None:
        """Take one whole pass, as `TraceWriter.write_pass` documents it."""
        self._passes[ROUTING_FILE].append(routing)
        self._passes[STEPS_FILE].append(steps)
        self._bytes += pass_bytes(routing, steps)
        if self._bytes >= self._gathered_bytes:
            self.flush()

    def flush(self) -> None:
        """Write the gathered passes; when this returns, they are on the disk.

        Raises
        ------
        TraceError
            A reader would refuse a pass.
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
            self._written[file][self._part :] = [span_of(to_numpy(rows.read(["pass"])["pass"]))]
            self._passes[file] = []
        self.has_written = True
        self._bytes = 0
        self._last_pass = int(new[STEPS_FILE]["pass"][-1].as_py())
        if sum(table.nbytes for table in self._tables.values()) >= self._part_bytes:
            self._part += 1
            self._tables = {file: empty_table(schema) for file, schema in self.schemas.items()}

    def read_back(self, file: str) -> list[Part]:
        """Return the parts of a file as they are on the disk, in the order they were written.

        Raises
        ------
        TracekitError
            A part is not what was written: it was removed, replaced or damaged meanwhile.
        """
        parts, wrong = [], []
        for number, span in enumerate(self._written[file]):
            path = self.folder / part_name(file, number)
            try:
                part = Part.read(path)
            except TraceError:
                part = None
            if part is None or part.span != span:
                wrong.append(path.name)
            else:
                parts.append(part)
        if wrong:
            n_passes = self._written[STEPS_FILE][-1].last - self._written[STEPS_FILE][0].first + 1
            lost = (
                f"{wrong[0]} is" if len(wrong) == 1 else f"{wrong[0]} and {len(wrong) - 1} more are"
            )
            raise TracekitError(
                f"{self.folder} does not hold all of the {n_passes} passes that were recorded: "
                f"{lost} missing or changed. What is left is kept, marked incomplete; record it again."
            )
        return parts

    def _path(self, file: str) -> Path:
        return self.folder / part_name(file, self._part)

    def _check(self, routing: pa.Table, steps: pa.Table) -> None:
        """Refuse what a reader of the finished trace would refuse, the passes before these known."""
        first = int(to_numpy(steps["pass"])[0])
        if self._last_pass is not None and first != self._last_pass + 1:
            raise ValueError(f"pass {first} was written after pass {self._last_pass}")
        rows = {name: to_numpy(routing[name]) for name in (*PLACE, "layer")}
        places = {name: to_numpy(steps[name]) for name in PLACE}
        self._order.check(self._where(ROUTING_FILE), rows, self._where(STEPS_FILE), places)
        costs = {
            name: to_numpy(steps[name], NULLS[name]) for name in ("start_s", "evict_ms", "wall_ms")
        }
        self._last_start_s = check_costs(self._where(STEPS_FILE), costs, self._last_start_s)

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
        columns, valid = {}, {}
        for field in schema:
            name = field.name
            values, known = _gather(field, [c.get(name) for c in passes], counts)
            columns[name], valid[name] = values, known
            if values is not None:
                self.filled_columns.add(name)
            if isinstance(values, np.ndarray):
                rows = known if name in WHOLE_LISTS else None
                checks.check_values(checks.Column(where, name, values, rows), self._model)
        return to_table(columns, schema, sum(counts), valid)


def _gather(
    field: pa.Field, given: Sequence[Any], counts: Sequence[int]
) -> tuple[Values | None, np.ndarray | None]:
    """Join what each pass gives for a column; return the values, and which are not null."""
    if all(values is None for values in given):
        if not field.nullable:
            raise ValueError(f"the column {field.name!r} must be given")
        return None, None
    if pa.types.is_binary(field.type):
        pairs = zip(given, counts, strict=True)
        return [v for values, n in pairs for v in ([None] * n if values is None else values)], None
    null = NULLS.get(field.name, 0)
    joined = empty(field.type, sum(counts))
    is_given = np.ones(len(joined), dtype=bool)
    at = 0
    for values, count in zip(given, counts, strict=True):
        joined[at : at + count] = null if values is None else cast(values, joined.dtype, field.name)
        is_given[at : at + count] = values is not None
        at += count
    if field.name in WHOLE_LISTS:
        suspect = np.flatnonzero(np.isnan(joined[:, 0]))
        is_given[suspect] &= ~np.isnan(joined[suspect]).all(axis=1)
        return joined, is_given
    if not field.nullable:
        return joined, is_given
    return joined, ~np.isnan(joined) if joined.dtype.kind == "f" else joined != null
