"""``tracekit formats``: list the files of other tools that can be read, and those that can be written."""

from typing import TYPE_CHECKING, Any

from tracekit.cli.console import Console
from tracekit.cli.options import ForceOption, FormatOption, OutputOption, QuietOption
from tracekit.cli.output import Output, flat

if TYPE_CHECKING:
    from tracekit.exports import ExportFormat
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
    """List the files of other tools that can be read as a trace or as counts, and those to write."""
    destination = Output(Console(quiet), output, format, force)
    from tracekit.exports import EXPORTS
    from tracekit.formats import COUNTS, FORMATS

    traces = [_described(cls) for cls in FORMATS]
    counts = [_of_counts(cls) for cls in COUNTS]
    exports = [_to_write(cls) for cls in EXPORTS]
    parts = (("To read as a trace", traces, _LEGEND), ("To read as counts", counts, _OF_COUNTS))
    destination.write(
        table=lambda: "\n\n".join(
            "\n\n".join([f"{title}:", *map(_text, entries), legend])
            for title, entries, legend in (*parts, ("To write", exports, _OF_EXPORTS))
        ),
        document=lambda: {
            "schema": "tracekit.formats/1",
            "formats": traces,
            "counts": counts,
            "exports": exports,
        },
        records=lambda: [
            flat({**_NOTHING, **entry, **{name: " ".join(entry.get(name, ())) for name in _LISTS}})
            for entry in (*traces, *counts, *exports)
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


_OF_EXPORTS = (
    "`tracekit export TRACE -o FILE` writes these; the end of the name says which, or --format. A trace\n"
    "that is read again from csv, parquet or npz replays to the same figures."
)

# All keys of an entry: a table of all of them has the same columns in each row.
_NOTHING = dict.fromkeys(("name", "holds", "summary", "told_by", "lacks"), "")
_LISTS = ("needs", "endings")


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


def _to_write(cls: "type[ExportFormat]") -> Entry:
    return {
        "name": cls.name,
        "holds": "export",
        "summary": cls.summary,
        "endings": list(cls.endings),
        "lacks": ", ".join(cls.lacks()),
    }


def _text(entry: Entry) -> str:
    lines = [f"{entry['name']:<13} {entry['summary']}"]
    if "told_by" in entry:
        lines.append(f"told by: {entry['told_by']}")
    if entry.get("endings"):
        lines.append(f"name ends in: {' '.join(entry['endings'])}")
    if entry["lacks"]:
        lines.append(f"lacks: {entry['lacks']}")
    if entry.get("needs"):
        lines.append(f"needs: {' '.join(entry['needs'])}")
    return f"\n{'':14}".join(lines)
