"""``tracekit import``: turn another recorder's file into a ``.trace`` directory."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.options import MAX_MIB, ForceOption, QuietOption, VerboseOption
from tracekit.cli.output import check_free
from tracekit.figures import MIB, exact_mib, in_bytes
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    from tracekit.trace import Trace


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
            help="Size of the engine's expert cache, if FILE does not say it.",
        ),
    ] = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Turn another recorder's file into a trace.

    The format is recognised by the content of the file, not by its name. What the file says of its
    cache is compared with a replay, and the trace keeps what came out.
    """
    console = Console(quiet, verbose)
    check_free(output, force)
    from tracekit.trace import write_trace
    from tracekit.trace.folder import check_target

    check_target(output, force)
    if cache_mib is not None and not 0 <= cache_mib <= MAX_MIB:
        raise UsageError(f"--cache-mib takes a size in MiB from 0 to 1e12, not {cache_mib:g}.")
    trace = open_trace(file, console, None if cache_mib is None else round(cache_mib * MIB))
    write_trace(trace, output, force=force)
    n_bytes = sum(part.stat().st_size for part in output.iterdir())
    console.note(f"Wrote {output}: {trace.n_rows} routings, {in_bytes(n_bytes)}.")
    validate = []
    if trace.has("residency"):
        if trace.budget_bytes is None:
            console.note(_ask_for_budget(trace, file))
        else:
            validate = ["--validate"]
    console.note(f"Next: {shlex.join(['tracekit', 'replay', str(output), *validate])}")


def _ask_for_budget(trace: "Trace", file: Path) -> str:
    """Ask for the budget that the file does not give; name the one that fits what it recorded."""
    from tracekit.replaying.reasons import fitting_budget
    from tracekit.routing.residency import sizes_are_known

    text = f"{file} does not say how large the engine's cache was; give --cache-mib"
    fits = fitting_budget(trace) if sizes_are_known(trace) else None
    if fits is None:
        return f"{text}."
    size = exact_mib(fits)
    return f"{text} {size}, if it was that: lru at {size} MiB gives what was recorded."
