"""Write a trace as a file of another format: whole, or not at all.

In: a trace, a path, perhaps the name of a format. Out: a file, and what it does not hold.
"""

from dataclasses import dataclass
from pathlib import Path

from tracekit.exports.format import EXPORTS, ExportFormat
from tracekit.formats import as_trace
from tracekit.trace import Trace, TraceError, UsageError
from tracekit.trace.atomic import result_file


@dataclass(frozen=True)
class Exported:
    """What was written.

    Attributes
    ----------
    path : Path
    format : str
    leaves_out : list of str
        What the trace has and the file does not, in words.
    notes : list of str
        What a user of the file should know, one sentence each.
    import_flags : list of str or None
        Flags of ``tracekit import`` that make a trace of the file again which replays to the same
        figures; None: the file is not imported.
    """

    path: Path
    format: str
    leaves_out: list[str]
    notes: list[str]
    import_flags: list[str] | None


def format_of(path: Path, name: str | None = None) -> ExportFormat:
    """Return the format of that name, or the one that the end of a file's name means.

    Raises
    ------
    UsageError
        There is none.
    """
    if name is not None:
        return EXPORTS.find(name)()
    lower = path.name.lower()
    for format_class in EXPORTS:
        if lower.endswith(tuple(ending.lower() for ending in format_class.endings)):
            return format_class()
    endings = ", ".join(each.endings[0] for each in EXPORTS if each.endings)
    names = ", ".join(each.name for each in EXPORTS)
    raise UsageError(
        f"The name {path} does not say which format to write; end it in one of {endings}, or give "
        f"--format: {names}."
    )


def export(
    trace: Trace | str | Path,
    path: str | Path,
    format: str | None = None,
    *,
    force: bool = False,
) -> Exported:
    """Write a trace as a file of another format, pass by pass; if it fails, nothing is left.

    Parameters
    ----------
    trace : Trace, str or Path
        A trace; or a path or ``bundled:NAME``, as for `open_trace`.
    path : str or Path
        The file to write.
    format : str, optional
        ``oracleGeneral``, ``csv``, ``parquet``, ``npz`` or ``libcachesim-csv``; by default as the
        end of `path` says.
    force : bool
        Overwrite a file that is there.

    Returns
    -------
    Exported

    Raises
    ------
    UsageError
        The format is not known, or something is at `path`.
    TraceError
        The trace cannot be read, or the format cannot hold it.
    TracekitError
        The file cannot be written.
    """
    path = Path(path)
    chosen = format_of(path, format)
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file to write.")
    if path.is_file() and not force:
        raise UsageError(f"{path} exists; use force to overwrite it, or another name.")
    trace = as_trace(trace)
    if trace.n_rows == 0:
        raise TraceError(f"{trace.name} has no routing, so there is nothing to export.")
    with result_file(path) as file:
        chosen.write(trace, file, path)
    return Exported(
        path,
        chosen.name,
        chosen.leaves_out(trace),
        chosen.notes(trace),
        chosen.import_flags(trace),
    )
