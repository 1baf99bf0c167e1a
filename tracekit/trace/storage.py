"""The files of a ``NAME.trace`` directory: which of them hold the rows, and how far they count."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tracekit.trace.columns import empty_table, to_numpy
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import TraceFacts
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
class Found:
    """What a trace directory holds."""

    facts: TraceFacts
    layers: Rows
    routing: Rows
    steps: Rows
    warnings: list[str] = field(default_factory=list)


def part_name(file: str, number: int) -> str:
    """Return the name of part `number` of a file: ``routing-00000.parquet``."""
    return file.replace(".parquet", f"-{number:05d}.parquet")


def parts(directory: Path, file: str) -> list[Path]:
    """Return the closed parts of `file` in the order they were written."""
    pattern = re.compile(re.escape(file).replace(r"\.parquet", r"-(\d{5,})\.parquet"))
    found = [(m, p) for p in directory.iterdir() if (m := pattern.fullmatch(p.name))]
    return [path for _, path in sorted((int(m[1]), path) for m, path in found)]


def read_facts(directory: Path) -> TraceFacts:
    """Read ``trace.json``.

    Raises
    ------
    TraceError
        There is no such directory, it is no trace, or its facts are not as they should be.
    """
    path = directory / FACTS_FILE
    if not directory.exists():
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
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{path} is not valid JSON ({error}); it is cut short or damaged: copy it again."
        ) from error
    return TraceFacts.from_json(data, str(path))


def find(directory: Path) -> Found:
    """Find the rows of the trace in `directory`.

    A recording that did not end cleanly has its rows in part files, of the routings and of the
    steps apart; what counts are the passes present in both.

    Raises
    ------
    TraceError
    """
    facts = read_facts(directory)
    if facts.complete:
        layers, routing, steps = (
            FileRows([directory / file]) for file in (LAYERS_FILE, ROUTING_FILE, STEPS_FILE)
        )
        return Found(facts, layers, routing, steps)

    has_layers = (directory / LAYERS_FILE).exists()
    layers = (
        FileRows([directory / LAYERS_FILE])
        if has_layers
        else TableRows(empty_table(layers_schema()))
    )
    routing = _unfinished(directory, ROUTING_FILE, routing_schema(facts.model.top_k))
    steps = _unfinished(directory, STEPS_FILE, steps_schema())
    last = min(_last_pass(routing), _last_pass(steps))
    routing, steps = _cut(routing, last), _cut(steps, last)
    kept = f"its first {steps.n_rows} tokens are kept" if steps.n_rows else "before its first token"
    return Found(
        facts,
        layers,
        routing,
        steps,
        [f"{directory} is incomplete: the recording was cut short, {kept}."],
    )


def _unfinished(directory: Path, file: str, schema) -> Rows:
    paths = parts(directory, file)
    if not paths and (directory / file).exists():
        paths = [directory / file]
    return FileRows(paths) if paths else TableRows(empty_table(schema))


def _passes(rows: Rows) -> np.ndarray:
    if "pass" not in rows.schema.names:
        raise TraceError("a part of the trace lacks its column 'pass'; record the trace again.")
    return to_numpy(rows.read(["pass"])["pass"])


def _last_pass(rows: Rows) -> int:
    return int(_passes(rows)[-1]) if rows.n_rows else -1


def _cut(rows: Rows, last: int) -> Rows:
    """Keep the passes up to `last`; they stand in order, or validation refuses the rest."""
    n_rows = int(np.searchsorted(_passes(rows), last, side="right"))
    return rows if n_rows == rows.n_rows else rows.cut(n_rows)
