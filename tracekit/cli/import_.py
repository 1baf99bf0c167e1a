"""``tracekit import``: another recorder's file into a ``.trace``."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli.console import Console
from tracekit.cli.options import ForceOption, QuietOption, VerboseOption
from tracekit.cli.output import check_free
from tracekit.cli.table import size


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What to import.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="X.trace", help="The trace to write.", show_default=False
        ),
    ],
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Turn another recorder's file into a trace.

    The format is told by the content, not by the name.
    """
    console = Console(quiet, verbose)
    check_free(output, force)
    from tracekit.formats import open_any
    from tracekit.trace import write_trace
    from tracekit.trace.folder import check_target

    check_target(output, force)
    trace = open_any(file)
    for warning in trace.warnings:
        console.warn(warning)
    write_trace(trace, output, force=force)
    n_bytes = sum(part.stat().st_size for part in output.iterdir())
    console.note(f"Wrote {output}: {trace.n_rows} routings, {size(n_bytes)}.")
    console.note(f"Next: {shlex.join(['tracekit', 'replay', str(output)])}")
