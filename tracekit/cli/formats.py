"""``tracekit formats``: list the files of other tools that can be read."""

from typing import TYPE_CHECKING, Any

from tracekit.cli.console import Console
from tracekit.cli.options import ForceOption, FormatOption, OutputOption, QuietOption
from tracekit.cli.output import Output, flat

if TYPE_CHECKING:
    from tracekit.formats import Format

# What is told of a format, as JSON has it.
Entry = dict[str, Any]


def formats(
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    quiet: QuietOption = False,
) -> None:
    """List the files of other tools that can be read as a trace."""
    destination = Output(Console(quiet), output, format, force)
    from tracekit.formats import FORMATS

    entries = [_described(cls) for cls in FORMATS]
    destination.write(
        table=lambda: "\n\n".join([*map(_text, entries), _LEGEND]),
        document=lambda: {"schema": "tracekit.formats/1", "formats": entries},
        records=lambda: [flat({**entry, "needs": " ".join(entry["needs"])}) for entry in entries],
    )


_LEGEND = (
    "Every command opens these files as they are; where flags are needed, `tracekit import FILE` takes\n"
    "them. Several files of one run, or a folder of them, are one trace. docs/formats.md shows forms\n"
    "that are easy to write."
)


def _described(cls: "type[Format]") -> Entry:
    return {
        "name": cls.name,
        "summary": cls.summary,
        "told_by": cls.told_by,
        "lacks": cls.lacks,
        "needs": list(cls.needs),
    }


def _text(entry: Entry) -> str:
    lines = [f"{entry['name']:<13} {entry['summary']}", f"told by: {entry['told_by']}"]
    if entry["lacks"]:
        lines.append(f"lacks: {entry['lacks']}")
    if entry["needs"]:
        lines.append(f"needs: {' '.join(entry['needs'])}")
    return f"\n{'':14}".join(lines)
