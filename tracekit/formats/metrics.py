"""The ``.metrics`` file of BigMoeOnEdge, beside a route trace: a row of times for each decoded token.

In: a trace, and the path of such a file. Out: the trace with these times among its steps.

The columns are identified by name. Where reading and computing took turns, ``stall_ms`` is 0 in every
row, and tokens waited for as long as reading took: ``io_ms``.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from tracekit.figures import MIB, counted
from tracekit.formats.base import read_bytes as content_of
from tracekit.trace import Trace, TraceError
from tracekit.trace.rows import TableRows
from tracekit.trace.schema import DECODE, LAYERS_FILE, MISS, PREFETCHED, ROUTING_FILE, STEPS_FILE

_MS = ("wall_ms", "io_ms", "stall_ms")
_REQUIRED = ("wall_ms", "read_bytes")
_LARGEST = float(1 << 62)

# Direct I/O reads whole pages: up to so much more than the experts' own bytes, and no less.
_MORE, _LESS = 1.05, 0.99
_SOME_MIB = 1.0
_MOST_OTHER = 0.1  # of the tokens


def with_metrics(trace: Trace, path: Path) -> Trace:
    """Return `trace` with the times that a ``.metrics`` file gives its decoded tokens.

    Parameters
    ----------
    trace : Trace
    path : Path
        A row for each decoded token, in order, with ``wall_ms`` and ``read_bytes`` at least.

    Raises
    ------
    TraceError
        The file is no such file, a time is missing, not a number or negative, or the times are of
        another trace.
    """
    columns = _columns(path)
    steps = trace.steps(["pass", "phase"])
    decoded = (steps["phase"] == DECODE) & trace.kept
    n, n_rows = int(decoded.sum()), len(columns["wall_ms"])
    if n != n_rows:
        raise TraceError(
            f"{path} has the times of {counted(n_rows, 'token')}, and {trace.name} has "
            f"{counted(n, 'decoded token')}; give the metrics of the same run."
        )
    _check_bytes(trace, steps["pass"][decoded], columns["read_bytes"], path)
    notes = {**trace.facts.notes, "metrics": path.name}
    if "stall_ms" in columns and "io_ms" in columns:
        takes_turns = not columns["stall_ms"].any() and columns["io_ms"].any()
        notes["mode"] = "serial" if takes_turns else "overlap"
        if takes_turns:
            columns["stall_ms"] = columns["io_ms"]
    table = trace.table(STEPS_FILE)
    for name, values in columns.items():
        field = table.schema.field(name)
        filled = np.zeros(len(decoded))
        filled[decoded] = values
        typed = filled if pa.types.is_floating(field.type) else filled.astype(np.int64)
        column = pa.array(typed, field.type, mask=~decoded)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    timed = Trace(
        replace(trace.facts, notes=notes),
        TableRows(trace.table(LAYERS_FILE)),
        trace.rows(ROUTING_FILE),
        TableRows(table),
        trace.path,
        trace.warnings,
        trace.name,
    )
    timed.validate()
    return timed


def _columns(path: Path) -> dict[str, np.ndarray]:
    """Return the columns of the file that a trace has, each float64 [tokens]."""
    lines = content_of(path).splitlines(keepends=True)  # its last is a summary, after a #
    text = b"".join(line for line in lines if line.strip() and not line.startswith(b"#"))
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(use_threads=False),
            csv.ParseOptions(quote_char=False),
            csv.ConvertOptions(column_types=dict.fromkeys((*_MS, "read_bytes"), pa.float64())),
        )
    except pa.ArrowException as error:
        fault = str(error).partition("\n")[0][:200]
        raise TraceError(f"{path} cannot be read as metrics: {fault}; copy it again.") from error
    lacks = [name for name in _REQUIRED if name not in table.column_names]
    if lacks:
        raise TraceError(
            f"{path} lacks the column {lacks[0]}; a .metrics file of BigMoeOnEdge has wall_ms and "
            "read_bytes of each decoded token."
        )
    columns = {}
    for name in (*_MS, "read_bytes"):
        if name not in table.column_names:
            continue
        values = table[name].to_numpy().astype(np.float64)
        wrong = ~((values >= 0) & (values < _LARGEST))
        if wrong.any():
            row = int(wrong.argmax())
            said = "is missing or no number" if np.isnan(values[row]) else f"is {values[row]:g}"
            raise TraceError(
                f"{path}, row {row + 1}: {name} {said}; every decoded token needs a number that is not "
                "negative."
            )
        columns[name] = values
    return columns


def _check_bytes(trace: Trace, passes: np.ndarray, read: np.ndarray, path: Path) -> None:
    """Compare the bytes of each token with those of its recorded misses, where both are known.

    Raises
    ------
    TraceError
        They are of another run.
    """
    if not trace.has("residency") or (trace.layer_columns["expert_bytes"] < 0).all():
        return
    names = ["pass", "phase", "layer", "residency"]
    has_dropped = trace.has("dropped")
    rows = trace.routing([*names, "dropped"] if has_dropped else names)
    decoded = rows["phase"] == DECODE
    was_read = (rows["residency"] == MISS) | (rows["residency"] == PREFETCHED)
    if has_dropped:
        was_read &= rows["dropped"] != 1
    sizes = np.zeros(trace.n_layer, np.int64)
    layers = trace.layer_columns
    sizes[layers["layer"]] = np.maximum(layers["expert_bytes"], 0)
    of_row = was_read[decoded].sum(axis=1) * sizes[rows["layer"][decoded]]
    at = np.searchsorted(passes, rows["pass"][decoded])
    known = at < len(passes)
    known[known] &= passes[at[known]] == rows["pass"][decoded][known]
    recorded = np.bincount(at[known], of_row[known], len(passes))
    some = _SOME_MIB * MIB
    other = read < _LESS * recorded - some
    if not (rows["residency"] == PREFETCHED).any():  # what is read ahead may go unused
        other |= read > _MORE * recorded + some
    if other.mean() > _MOST_OTHER:
        first = int(other.argmax())
        raise TraceError(
            f"{path} is of another run than {trace.name}: {counted(int(other.sum()), 'token')} of "
            f"{len(read)} read other bytes than their misses take, the first {read[first] / MIB:.1f} "
            f"MiB and not {recorded[first] / MIB:.1f}; give the metrics of the same run."
        )
