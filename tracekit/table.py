"""Texts with tables in them: as plain text for a terminal, as HTML for a notebook."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import indent
from typing import Any, Generic, TypeVar

from tracekit.figures import printable, visible

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """One column of a table.

    Attributes
    ----------
    header : str
        Several lines are allowed; they stand at the bottom of the header.
    cell : callable
        Makes the text of a row's cell.
    left : bool
        Align left, as text is; numbers stand right.
    """

    header: str
    cell: Callable[[Row], str]
    left: bool = False


def render(
    columns: Sequence[Column[Row]],
    rows: Sequence[Row],
    group: Callable[[Row], Any] | None = None,
) -> str:
    """Return `rows` as aligned text; an empty line where `group` of a row changes."""
    headers = [[*map(printable, column.header.split("\n"))] for column in columns]
    height = max(map(len, headers))
    lines = [
        [*[""] * (height - len(header)), *header, *(printable(column.cell(row)) for row in rows)]
        for column, header in zip(columns, headers, strict=True)
    ]
    widths = [max(map(len, column)) for column in lines]
    text = [_line(columns, widths, cells) for cells in zip(*lines, strict=True)]
    body = text[height:]
    if group is not None:
        body = list(_spaced(body, [group(row) for row in rows]))
    return "\n".join([*text[:height], *body])


def _line(columns: Sequence[Column[Row]], widths: Sequence[int], cells: Iterable[str]) -> str:
    aligned = (
        cell.ljust(width) if column.left else cell.rjust(width)
        for column, width, cell in zip(columns, widths, cells, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _spaced(lines: Sequence[str], groups: Sequence[Any]) -> Iterator[str]:
    for i, line in enumerate(lines):
        if i and groups[i] != groups[i - 1]:
            yield ""
        yield line


@dataclass(frozen=True)
class Table(Generic[Row]):
    """A table, in whichever form it is written.

    Attributes
    ----------
    columns : sequence of Column
    rows : sequence
        What the columns make their texts of.
    group : callable, optional
        Rows of which this differs are set apart.
    title : str
        The line above the table, where it needs one.
    indent : int
        Spaces before each line of the text.
    """

    columns: Sequence[Column[Row]]
    rows: Sequence[Row]
    group: Callable[[Row], Any] | None = None
    title: str = ""
    indent: int = 0

    def text(self) -> str:
        """Return the table as aligned text."""
        title = f"{_lines(self.title)}\n" if self.title else ""
        return title + indent(render(self.columns, self.rows, self.group), " " * self.indent)

    def html(self) -> str:
        """Return the table as HTML; every text in it is escaped."""
        caption = f"<caption>{_html_lines(self.title)}</caption>" if self.title else ""
        header = _html_row("th", [column.header for column in self.columns])
        bodies = []
        for _, rows in groupby(self.rows, self.group or (lambda row: None)):
            cells = ([column.cell(row) for column in self.columns] for row in rows)
            bodies.append(f"<tbody>{''.join(_html_row('td', of_row) for of_row in cells)}</tbody>")
        return f"<table>{caption}<thead>{header}</thead>{''.join(bodies)}</table>"


Part = str | Table[Any]  # lines of text, or a table


def as_text(parts: Iterable[Part]) -> str:
    """Return `parts` as plain text, with empty lines between them."""
    return "\n\n".join(_lines(part) if isinstance(part, str) else part.text() for part in parts)


def as_html(parts: Iterable[Part]) -> str:
    """Return `parts` as HTML: paragraphs and tables, every text in them escaped."""
    return "\n".join(
        f"<p>{_html_lines(part)}</p>" if isinstance(part, str) else part.html() for part in parts
    )


def _html_row(tag: str, texts: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_html_lines(text.strip())}</{tag}>' for text in texts)}</tr>"


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _html_lines(text: str) -> str:
    from html import escape  # a command line prints no HTML

    return escape(visible(text)).replace("\n", "<br>")
