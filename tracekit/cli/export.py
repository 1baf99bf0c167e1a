"""``tracekit export``: write a trace as a file of another format."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import completion
from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.options import ForceOption, QuietOption, TraceArgument, VerboseOption
from tracekit.cli.output import check_file
from tracekit.figures import in_bytes

FORMATS = ("csv", "parquet", "npz", "oracleGeneral", "libcachesim-csv")


def export(
    trace: TraceArgument,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="The file to write: .oracleGeneral.bin[.zst], .csv, .parquet or .npz.",
            show_default=False,
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="|".join(FORMATS),
            help="Format of the file. Default: by the ending of -o.",
            autocompletion=completion.one_of(*FORMATS),
        ),
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Write a trace as a file of another format.

    csv and parquet have a row for each selected expert, npz has arrays; `tracekit import` makes a
    trace of them again that replays to the same figures. oracleGeneral and libcachesim-csv are for
    libCacheSim: a record for each lookup, as `tracekit replay` counts them.
    """
    console = Console(quiet, verbose)
    check_file(output, force, [trace])
    from tracekit.exports import export as export_trace
    from tracekit.exports import format_of

    format_of(output, format)  # refused before the trace is read
    done = export_trace(open_trace(trace, console), output, format, force=True)
    size = output.stat().st_size
    console.note(f"Wrote {output}: {done.format}, {in_bytes(size)}.")
    for note in done.notes:
        console.note(note)
    if done.leaves_out:
        console.note(f"{output} leaves out: {', '.join(done.leaves_out)}.")
    if done.import_flags is not None:
        again = output.with_suffix(".trace").name
        command = ["tracekit", "import", str(output), *done.import_flags, "-o", again]
        console.note(f"Back to a trace: {shlex.join(command)}")
