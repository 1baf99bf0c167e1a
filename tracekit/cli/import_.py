"""``tracekit import``: turn another recorder's file into a ``.trace`` directory."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.options import MAX_MIB, ForceOption, QuietOption, VerboseOption, number
from tracekit.cli.output import check_free
from tracekit.figures import MIB, in_bytes
from tracekit.trace.errors import UsageError


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to import.", show_default=False)
    ],
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="X.trace", help="The trace to write.", show_default=False
        ),
    ],
    cache_mib: Annotated[
        float | None,
        typer.Option(
            "--cache-mib",
            metavar="MIB",
            parser=number("--cache-mib"),
            help="Size of the engine's expert cache, if FILE does not say it.",
        ),
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Turn another recorder's file into a trace.

    The format is recognised by the content of the file, not by its name.
    """
    console = Console(quiet, verbose)
    check_free(output, force)
    from tracekit.trace import EngineFacts, write_trace
    from tracekit.trace.folder import check_target

    check_target(output, force)
    if cache_mib is not None and not 0 <= cache_mib <= MAX_MIB:
        raise UsageError(f"--cache-mib takes a size in MiB from 0 to 1e12, not {cache_mib:g}.")
    trace = open_trace(file, console)
    if cache_mib is not None:
        engine = trace.facts.engine or EngineFacts(name="unknown")
        engine = replace(engine, cache_bytes=round(cache_mib * MIB))
        trace.facts = replace(trace.facts, engine=engine)
    write_trace(trace, output, force=force)
    n_bytes = sum(part.stat().st_size for part in output.iterdir())
    console.note(f"Wrote {output}: {trace.n_rows} routings, {in_bytes(n_bytes)}.")
    validate = []
    if trace.has("residency"):
        if trace.budget_bytes is None:
            console.note(f"{file} does not say how large the engine's cache was; give --cache-mib.")
        else:
            validate = ["--validate"]
    console.note(f"Next: {shlex.join(['tracekit', 'replay', str(output), *validate])}")
