"""``tracekit advise``: what to build for this model on this device, on one page."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import completion, options
from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.options import (
    ForceOption,
    OutputOption,
    QuietOption,
    TableOrJsonOption,
    TraceArgument,
)
from tracekit.cli.output import Output
from tracekit.datasets import resolve
from tracekit.trace.errors import UsageError


def advise(
    trace: TraceArgument,
    cache_mib: Annotated[
        list[str] | None,
        options.cache_mib_option(
            "One size. Default: the recorded budget, else a quarter of all experts."
        ),
    ] = None,
    ram_mib: Annotated[
        float | None,
        typer.Option(
            "--ram-mib",
            metavar="M",
            parser=options.number("--ram-mib"),
            help="Memory of the device.",
        ),
    ] = None,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE",
            parser=resolve,
            help="Take times from this recording of the same model.",
            autocompletion=completion.traces,
        ),
    ] = None,
    param: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME.FIELD=VALUE[,VALUE…]",
            help="A parameter of a policy that is tried, such as prefetch.spec_max=4. Several values of "
            "prefetch.predictor and prefetch.horizon.",
        ),
    ] = None,
    format: TableOrJsonOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Say what to build for this model on this device: cache size, policy, reading ahead.

    Each finding names the command that shows its figures. What the evidence does not carry is not said.
    """
    console = Console(quiet)
    destination = Output(console, output, format, force, inputs=[trace, calibrate])
    budgets = options.cache_bytes(cache_mib) if cache_mib else []
    if len(budgets) > 1:
        raise UsageError(f"advise is about one cache size, not {len(budgets)}.")
    from tracekit.advice.advise import advise as run
    from tracekit.formats import open_any

    found = run(
        open_trace(trace, console),
        where=str(trace),
        cache_bytes=budgets[0] if budgets else None,
        ram_mib=ram_mib,
        calibrate=open_any(calibrate) if calibrate else None,
        params=options.params(param or []),
    )
    destination.write(
        table=found.to_text,
        document=found.to_json,
        records=lambda: [finding.to_json() for finding in found.findings],
        notes=[],
    )
