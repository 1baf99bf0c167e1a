"""``tracekit info``: what a trace is."""

from typing import Any

from tracekit.cli.console import Console, printable
from tracekit.cli.options import (
    ForceOption,
    FormatOption,
    OutputOption,
    QuietOption,
    TraceArgument,
    VerboseOption,
)
from tracekit.cli.output import Output
from tracekit.cli.table import size


def info(
    trace: TraceArgument,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Show what a trace is and carries."""
    console = Console(quiet, verbose)
    destination = Output(output, format, force, formats=("table", "json"))
    from tracekit.formats import open_any
    from tracekit.trace import describe

    opened = open_any(trace)
    for warning in opened.warnings:
        console.warn(warning)
    facts = describe(opened)
    destination.write(table=lambda: _table(facts), document=lambda: facts)


def _table(facts: dict[str, Any]) -> str:
    rows = list(_lines(facts))
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {printable(text)}".rstrip() for name, text in rows)


def _lines(facts: dict[str, Any], prefix: str = ""):
    for name, value in facts.items():
        yield prefix + name, str(value)
