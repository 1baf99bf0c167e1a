"""Where a result goes and in which form: checked before the work, written whole or not at all.

In come a path, a format and functions that make the text, the JSON object or the rows of a result;
nothing here knows which command's result it is.
"""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

from tracekit.cli.console import Console
from tracekit.figures import csv_cell, settings
from tracekit.trace.errors import UsageError

FORMATS = ("table", "json", "csv", "parquet")


def check_free(path: Path, force: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Refuse an output that exists, unless `force`, or whose folder cannot take it.

    Parameters
    ----------
    path : Path
    force : bool
        Overwrite what is there; never one of `inputs`, nor a file of a trace among them.
    inputs : iterable of Path or None
        What the result is made from.

    Raises
    ------
    UsageError
        `path` cannot be used; the sentence says what to do instead.
    """
    from tracekit.trace.atomic import is_device

    if path.exists() and not is_device(path):
        if not force:
            raise UsageError(f"{path} exists; use --force to overwrite it, or another name.")
        if any(each.exists() and _holds(each, path) for each in inputs if each is not None):
            raise UsageError(f"{path} is what the result is made from; use another name.")
    folder = path.absolute().parent
    if not folder.is_dir():
        raise UsageError(f"Cannot write {path}: there is no folder {folder}; make it first.")
    if not os.access(folder, os.W_OK):
        raise UsageError(f"Cannot write {path}: the folder {folder} is not writable.")


def check_file(path: Path, force: bool, inputs: Iterable[Path | None] = ()) -> None:
    """Do as `check_free` does, for a result that is one file: refuse a folder too."""
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file to write.")
    check_free(path, force, inputs)


def _holds(source: Path, path: Path) -> bool:
    """Say whether `path` is the file `source`, or a file of the trace in the directory `source`."""
    from tracekit.trace.folder import TRACE_FILES

    own = path.resolve()
    is_in_trace = own.parent.samefile(source) and TRACE_FILES.fullmatch(own.name) is not None
    return is_in_trace or path.samefile(source)


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Give a new file beside `path`; rename it to `path` at the end, remove it on failure.

    A device or a pipe is written directly: it cannot be renamed.

    Raises
    ------
    TracekitError
        The disk is full, the folder read-only, …; nothing is left behind.
    """
    from tracekit.trace.atomic import result_file

    with result_file(path) as file:
        yield file


class Output:
    """The destination of a command's result.

    Parameters
    ----------
    console : Console
        Says which file was written.
    path : Path or None
        None: stdout.
    format : str or None
        One of `FORMATS`; None: by the ending of `path`, else a table.
    force : bool
        Overwrite `path`.
    formats : sequence of str
        Which of `FORMATS` the result has.
    inputs : iterable of Path or None
        What the result is made from: never overwritten.

    Raises
    ------
    UsageError
        The destination cannot be used. No work has been done by then.
    """

    def __init__(
        self,
        console: Console,
        path: Path | None,
        format: str | None = None,
        force: bool = False,
        formats: Sequence[str] = FORMATS,
        inputs: Iterable[Path | None] = (),
    ):
        ending = path.suffix.removeprefix(".") if path else ""
        self.console = console
        self.format = format or (ending if ending in formats else "table")
        self.path = path
        if format is None and ending not in (*formats, "txt", ""):
            raise UsageError(
                f"The result has no format called .{ending}; name {path} with one of "
                f"{', '.join(each for each in formats if each != 'table')} or txt, or give --format."
            )
        if self.format not in formats:
            raise UsageError(
                f"There is no format {self.format!r} here; choose one of {', '.join(formats)}."
            )
        if path is None and self.format == "parquet":
            raise UsageError("Parquet is not for the terminal: name a file with -o.")
        if path is not None:
            check_file(path, force, inputs)

    def write(
        self,
        *,
        table: Callable[[], str],
        document: Callable[[], Mapping[str, Any]],
        records: Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        """Write the result in its format.

        Parameters
        ----------
        table, document, records : callable
            Make the text table, the JSON object, and the rows of CSV and Parquet. Only a command
            whose formats leave CSV and Parquet out gives no `records`.
        notes : iterable of str
            Sentences about the result. The table and the JSON object carry them; with CSV and
            Parquet they go to stderr.
        """
        if self.format == "table":
            data = table().rstrip("\n").encode(errors="backslashreplace") + b"\n"
        elif self.format == "json":
            data = json.dumps(document(), indent=2, allow_nan=False).encode() + b"\n"
        else:
            assert records is not None, "a result with CSV and Parquet has records"
            for note in notes:
                self.console.note(note)
            if self.format == "csv":
                data = to_csv(records()).encode(errors="backslashreplace")
            else:
                data = to_parquet(records())
        if self.path is None:
            print(data.decode(), end="")
        else:
            with written_whole(self.path) as file:
                file.write(data)
            self.console.note(f"Wrote {self.path}.")


def flat(record: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return `record` with nested mappings as ``outer_inner``, and an interval as low and high.

    ``params`` becomes text, ``seed=0``: different policies have different parameters, which would
    give a column each.
    """
    result: dict[str, Any] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if key == "params":
            result[name] = settings(value)
        elif isinstance(value, Mapping):
            result |= flat(value, f"{name}_")
        elif key == "ci95":
            result[f"{name}_low"], result[f"{name}_high"] = value or (None, None)
        else:
            result[name] = value
    return result


def flat_records(
    results: Sequence[Mapping[str, Any]], identity: Sequence[str]
) -> list[dict[str, Any]]:
    """Return results, and the layers within them, as rows of one flat table.

    Where results carry ``layers``, the row of a result has a null ``layer``, and one row per layer
    follows it. These rows repeat the columns `identity` of their result.
    """
    layered = any("layers" in result for result in results)
    rows = []
    for result in results:
        own = {key: value for key, value in result.items() if key != "layers"}
        rows.append(flat({**own, "layer": None} if layered else own))
        repeated = {key: own[key] for key in identity if key in own}
        rows += [flat({**repeated, **layer}) for layer in result.get("layers") or []]
    return rows


def _columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return `rows` as CSV: a header line, an empty field for null, ``true`` and ``false``.

    A text that a spreadsheet would run as a formula has an apostrophe before it.
    """
    columns = _columns(rows)
    lines: list[str] = []
    # The writer quotes what holds a character of the line's end: a text may hold either.
    writer = csv.writer(SimpleNamespace(write=lines.append), lineterminator="\r\n")
    writer.writerow(map(csv_cell, columns))
    for values in zip(*columns.values(), strict=True):
        writer.writerow([str(v).lower() if isinstance(v, bool) else csv_cell(v) for v in values])
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


def to_parquet(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Return `rows` as the bytes of a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table(_columns(rows)), buffer)
    return buffer.getvalue()
