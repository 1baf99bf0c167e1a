"""The files of a ``NAME.trace`` directory: which of them have the rows, and how many rows count.

In: the path of a directory. Out: its facts, and the rows of its three tables. No value is checked
here.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tracekit.trace.columns import empty_table
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import NotFiniteError, TraceFacts, parse_json
from tracekit.trace.file_rows import FileRows
from tracekit.trace.recovery import recover
from tracekit.trace.rows import Rows, TableRows, reading
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


def read_facts(directory: Path) -> TraceFacts:
    """Read ``trace.json``.

    Raises
    ------
    TraceError
        There is no such directory, it is no trace, or its facts are not valid.
    """
    return TraceFacts.from_json(read_json(directory), str(directory / FACTS_FILE))


def read_json(directory: Path) -> Any:
    """Read ``trace.json`` as JSON, whatever it says.

    Raises
    ------
    TraceError
        There is no such directory, it is no trace, or the file is no JSON.
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
        data = path.read_bytes()
    return _parsed(data, str(path))


def facts_of(data: bytes, where: str) -> TraceFacts:
    """Return what the bytes of a ``trace.json`` say; `where` names the file.

    Raises
    ------
    TraceError
        They are no JSON, or no valid facts.
    """
    return TraceFacts.from_json(_parsed(data, where), where)


def _parsed(data: bytes, path: str) -> Any:
    try:
        return parse_json(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise TraceError(
            f"{path} is cut short or damaged ({error}); copy, record or import it again."
        ) from error
    except NotFiniteError as error:
        raise TraceError(f"{path}: {error}; correct it, or record the trace again.") from error
    except (ValueError, RecursionError) as error:
        raise TraceError(
            f"{path} is not valid JSON ({_json_fault(error)}); it is cut short or damaged: copy it "
            "again."
        ) from error


def _json_fault(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return str(error)
    too_deep = isinstance(error, RecursionError)
    return "it is nested too deeply" if too_deep else "a number has too many digits"


def read_directory(directory: Path) -> TraceFiles:
    """Return the content of the trace in `directory`.

    A recording that did not end cleanly has its rows in part files; `recovery` says which count.

    Raises
    ------
    TraceError
        As for `read_facts`, or a file is missing or damaged.
    """
    facts = read_facts(directory)
    said = said_of(facts, str(directory))
    if not facts.complete:
        return _read_incomplete(directory, facts, said)
    layers, routing, steps = (
        FileRows(directory / file) for file in (LAYERS_FILE, ROUTING_FILE, STEPS_FILE)
    )
    return TraceFiles(facts, layers, routing, steps, said)


def said_of(facts: TraceFacts, name: str) -> list[str]:
    """Return what the facts of the trace `name` warn of."""
    agreement = facts.current_agreement
    return [] if agreement is None or agreement.holds else [agreement.sentence(name)]


def _read_incomplete(directory: Path, facts: TraceFacts, said: list[str]) -> TraceFiles:
    path = directory / LAYERS_FILE
    layers = FileRows(path) if path.exists() else TableRows(empty_table(layers_schema()))
    kept = recover(
        directory, {ROUTING_FILE: routing_schema(facts.model.top_k), STEPS_FILE: steps_schema()}
    )
    return TraceFiles(facts, layers, kept.routing, kept.steps, [kept.sentence(directory), *said])
