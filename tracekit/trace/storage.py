"""The files of a ``NAME.trace`` directory: which of them have the rows, and how many rows count.

In: the path of a directory. Out: its facts, and the rows of its three tables. No value is checked
here.
"""

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from tracekit.trace.columns import empty_table, to_numpy
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import NotFiniteError, TraceFacts, parse_json
from tracekit.trace.rows import FileRows, Rows, TableRows, reading
from tracekit.trace.schema import (
    FACTS_FILE,
    LAYERS_FILE,
    ROUTING_FILE,
    STEPS_FILE,
    layers_schema,
    routing_schema,
    steps_schema,
)


@dataclass(frozen=True)
class TraceFiles:
    """The content of a trace directory, its rows not read yet."""

    facts: TraceFacts
    layers: Rows
    routing: Rows
    steps: Rows
    warnings: list[str] = field(default_factory=list)


def part_name(file: str, number: int) -> str:
    """Return the name of part `number` of a file: ``routing-00000.parquet``."""
    return file.replace(".parquet", f"-{number:05d}.parquet")


def part_paths(directory: Path, file: str) -> list[Path]:
    """Return the closed parts of `file` in the order they were written."""
    pattern = re.compile(re.escape(file).replace(r"\.parquet", r"-(\d{5,})\.parquet"))
    numbered = [(m, p) for p in directory.iterdir() if (m := pattern.fullmatch(p.name))]
    return [path for _, path in sorted((int(m[1]), path) for m, path in numbered)]


def read_facts(directory: Path) -> TraceFacts:
    """Read ``trace.json``.

    Raises
    ------
    TraceError
        There is no such directory, it is no trace, or its facts are not valid.
    """
    path = directory / FACTS_FILE
    if not os.path.exists(directory):  # unlike Path.exists, it takes any name
        raise TraceError(f"{directory} does not exist; name an existing trace.")
    if not directory.is_dir():
        raise TraceError(f"{directory} is a file; a trace is a directory that holds {FACTS_FILE}.")
    if not path.is_file():
        raise TraceError(
            f"{directory} is a directory but no trace: it holds no {FACTS_FILE}; "
            "name the directory that 'record' or 'import' wrote."
        )
    with reading(path):
        text = path.read_bytes().decode("utf-8-sig")
    try:
        data = parse_json(text)
    except NotFiniteError as error:
        raise TraceError(f"{path}: {error}; correct it, or record the trace again.") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{path} is not valid JSON ({_json_fault(error)}); it is cut short or damaged: copy it "
            "again."
        ) from error
    return TraceFacts.from_json(data, str(path))


def _json_fault(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return str(error)
    too_deep = isinstance(error, RecursionError)
    return "it is nested too deeply" if too_deep else "a number has too many digits"


def read_directory(directory: Path) -> TraceFiles:
    """Return the content of the trace in `directory`.

    A recording that did not end cleanly has its rows in part files, separately for routings and
    steps; the passes that both have are those that count.

    Raises
    ------
    TraceError
        As for `read_facts`, or a file is missing or damaged.
    """
    facts = read_facts(directory)
    if facts.complete:
        layers, routing, steps = (
            FileRows([directory / file]) for file in (LAYERS_FILE, ROUTING_FILE, STEPS_FILE)
        )
        return TraceFiles(facts, layers, routing, steps)
    return _read_incomplete(directory, facts)


def _read_incomplete(directory: Path, facts: TraceFacts) -> TraceFiles:
    layers = _rows_of([directory / LAYERS_FILE], layers_schema())
    routing = _rows_of_parts(directory, ROUTING_FILE, routing_schema(facts.model.top_k))
    steps = _rows_of_parts(directory, STEPS_FILE, steps_schema())
    last = min(_last_pass(routing), _last_pass(steps))
    routing, steps = _up_to(routing, last), _up_to(steps, last)
    kept = f"its first {steps.n_rows} tokens are kept" if steps.n_rows else "before its first token"
    warning = f"{directory} is incomplete: the recording was cut short, {kept}."
    return TraceFiles(facts, layers, routing, steps, [warning])


def _rows_of_parts(directory: Path, file: str, schema: pa.Schema) -> Rows:
    """Return the rows of the parts of `file`, or of the file itself where there are no parts."""
    return _rows_of(part_paths(directory, file) or [directory / file], schema)


def _rows_of(paths: list[Path], schema: pa.Schema) -> Rows:
    """Return the rows of those of `paths` that exist; without one, no rows of `schema`."""
    existing = [path for path in paths if path.exists()]
    return FileRows(existing) if existing else TableRows(empty_table(schema))


def _passes(rows: Rows) -> np.ndarray:
    if "pass" not in rows.schema.names:
        raise TraceError("a part of the trace lacks its column 'pass'; record the trace again.")
    return to_numpy(rows.read(["pass"])["pass"])


def _last_pass(rows: Rows) -> int:
    return int(_passes(rows)[-1]) if rows.n_rows else -1


def _up_to(rows: Rows, last: int) -> Rows:
    """Return the rows up to pass `last`; rows out of order are for the validation to refuse."""
    n_rows = int(np.searchsorted(_passes(rows), last, side="right"))
    return rows if n_rows == rows.n_rows else rows.cut(n_rows)
