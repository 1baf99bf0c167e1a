"""``tracekit formats``: list the files of other tools that can be read."""

from typing import TYPE_CHECKING, Any

from tracekit.cli.console import Console
from tracekit.cli.options import ForceOption, FormatOption, OutputOption, QuietOption
from tracekit.cli.output import Output, flat

if TYPE_CHECKING:
    from tracekit.formats import Format
    from tracekit.formats.counts.format import CountsFormat

# What is told of a format, as JSON has it.
Entry = dict[str, Any]


def formats(
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """List the files of other tools that can be read as a trace, or as counts."""
    destination = Output(Console(quiet), output, format, force)
    from tracekit.formats import COUNTS, FORMATS

    traces = [_described(cls) for cls in FORMATS]
    counts = [_of_counts(cls) for cls in COUNTS]
    destination.write(
        table=lambda: "\n\n".join([*map(_text, traces), _LEGEND, *map(_text, counts), _OF_COUNTS]),
        document=lambda: {"schema": "tracekit.formats/1", "formats": traces, "counts": counts},
        records=lambda: [
            flat({**entry, "needs": " ".join(entry["needs"])}) for entry in traces + counts
        ],
    )


_LEGEND = (
    "Every command opens these files as they are; where flags are needed, `tracekit import FILE` takes\n"
    "them. Several files of one run, or a folder of them, are one trace. docs/formats.md shows forms\n"
    "that are easy to write."
)

_OF_COUNTS = (
    "These files hold how often each expert was used, and nothing of the order: `tracekit info` and\n"
    "`tracekit plot popularity` open them, and nothing can be replayed."
)


def _described(cls: "type[Format]") -> Entry:
    return {
        "name": cls.name,
        "holds": "trace",
        "summary": cls.summary,
        "told_by": cls.told_by,
        "lacks": cls.lacks,
        "needs": list(cls.needs),
    }


def _of_counts(cls: "type[CountsFormat]") -> Entry:
    return {
        "name": cls.name,
        "holds": "counts",
        "summary": cls.summary,
        "told_by": cls.told_by,
        "lacks": "order, weights, phases",
        "needs": [],
    }


def _text(entry: Entry) -> str:
    lines = [f"{entry['name']:<13} {entry['summary']}", f"told by: {entry['told_by']}"]
    if entry["lacks"]:
        lines.append(f"lacks: {entry['lacks']}")
    if entry["needs"]:
        lines.append(f"needs: {' '.join(entry['needs'])}")
    return f"\n{'':14}".join(lines)
