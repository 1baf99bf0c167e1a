"""``tracekit report``: one page about a trace."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import options
from tracekit.cli.console import Console
from tracekit.cli.opening import open_trace
from tracekit.cli.options import (
    BypassOption,
    ForceOption,
    JobsOption,
    QuietOption,
    SeedOption,
    TraceArgument,
)
from tracekit.cli.output import check_file, written_whole
from tracekit.figures import in_bytes


def report(
    trace: TraceArgument,
    output: Annotated[
        Path,
        typer.Option(
            "-o", "--output", metavar="FILE.html", help="The page to write.", show_default=False
        ),
    ],
    policy: Annotated[list[str] | None, options.policy_option("Cache policies to replay.")] = None,
    predictor: Annotated[list[str] | None, options.predictor_option("Predictors to score.")] = None,
    cache_mib: Annotated[list[str] | None, options.cache_mib_option()] = None,
    bypass: BypassOption = False,
    seed: SeedOption = 0,
    jobs: JobsOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """Write one page with figures, tables and plots.

    The page also has a matrix of every token at every layer. It needs no network and no other file.
    """
    console = Console(quiet)
    check_file(output, force, [trace])
    policies = options.split("--policy", policy) if policy else None

    from tracekit.report import build_report

    opened = open_trace(trace, console)
    with console.progress("report") as update:
        page = build_report(
            opened,
            policies=policies,
            predictors=options.split("--predictor", predictor) if predictor else None,
            cache_bytes=options.cache_bytes(cache_mib) if cache_mib else None,
            bypass=bypass,
            seed=seed,
            jobs=jobs,
            progress=update,
        )
    with written_whole(output) as file:
        file.write(page.encode(errors="backslashreplace"))
    console.note(f"Wrote {output}: {in_bytes(output.stat().st_size)}, one file.")
    console.note("Next: open it in a browser.")
