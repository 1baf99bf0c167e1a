"""``tracekit compare``: is one configuration faster than another? Recordings made in turns say so."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from tracekit.cli import completion
from tracekit.cli.console import Console
from tracekit.cli.options import ForceOption, OutputOption, QuietOption, TableOrJsonOption
from tracekit.cli.output import Output, check_file, written_whole
from tracekit.datasets import resolve
from tracekit.trace.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def compare(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="A1 B1 [B2 A2 …]",
            parser=resolve,
            help="Recordings with times, in the order in which they were made.",
            show_default=False,
            autocompletion=completion.traces,
        ),
    ],
    order: Annotated[
        str,
        typer.Option(
            metavar="ABBA|ABAB",
            help="Which configuration each recording is of; the pattern repeats.",
            autocompletion=completion.one_of("ABBA", "ABAB"),
        ),
    ] = "ABBA",
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also draw the runs into this .png, .svg or .pdf."),
    ] = None,
    format: TableOrJsonOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Compare two configurations that were recorded in turns, on the same prompts.

    The same configuration run twice differs by several percent, so a single pair shows nothing: record
    A, B, B, A. The runs must have decoded the same tokens with the same routing.
    """
    console = Console(quiet)
    destination = Output(console, output, format, force, inputs=traces)
    if plot is not None:
        if plot.suffix.lower() not in (".png", ".svg", ".pdf"):
            raise UsageError(
                f"--plot takes a name that ends in .png, .svg or .pdf, not {plot.name!r}."
            )
        check_file(plot, force, traces)
    from tracekit.formats import open_any
    from tracekit.timing.comparison import compare as run

    found = run([open_any(trace) for trace in traces], order)
    if plot is not None:
        from tracekit.plots.compare import plot_comparison

        with written_whole(plot) as file:
            figure = cast("Figure", plot_comparison(found).figure)
            figure.savefig(file, format=plot.suffix[1:].lower(), dpi=150)
        console.note(f"Wrote {plot}.")
    destination.write(
        table=found.to_text,
        document=found.to_json,
        records=lambda: [vars(run) for run in found.runs],
        notes=found.notes,
    )
