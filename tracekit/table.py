"""Tables of plain text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
    headers = [column.header.split("\n") for column in columns]
    height = max(map(len, headers))
    lines = [
        [*[""] * (height - len(header)), *header, *(column.cell(row) for row in rows)]
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
