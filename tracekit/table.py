"""Tables of plain text, and how figures are written in them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MIB = 2**20
NONE = "-"


@dataclass(frozen=True)
class Column:
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
    cell: Callable[[Mapping[str, Any]], str]
    left: bool = False


def printable(text: str) -> str:
    """Return `text` with control characters and lone surrogates escaped: it may come from a file."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def counted(n: int, one: str, more: str | None = None) -> str:
    """Write a number and what it counts: ``1 pass``, ``2 passes``."""
    return f"{n} {one if n == 1 else more or one + 's'}"


def known(value: float | None) -> bool:
    """Say whether `value` is neither None nor NaN."""
    return value is not None and value == value


def settings(params: Mapping[str, Any]) -> str:
    """Write parameters and their values: ``predictor=oracle horizon=1``."""
    return " ".join(f"{name}={value}" for name, value in params.items())


def percent(rate: float | None) -> str:
    """Write a fraction in percent, ``-`` for null; only a whole is written 100.00."""
    if not known(rate):
        return NONE
    text = f"{100 * rate:.2f}"
    return "99.99" if text == "100.00" and rate < 1 else text


def mib(size: float | None) -> str:
    """Write bytes in MiB, ``-`` for null; small models need more digits."""
    if not known(size):
        return NONE
    value = size / MIB
    digits = 1 if value >= 100 or value == 0 else 2 if value >= 1 else 4
    return f"{value:.{digits}f}"


def size(n_bytes: float) -> str:
    """Write bytes in the unit that suits them."""
    if n_bytes < 1024:
        return f"{n_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        n_bytes /= 1024
        if n_bytes < 1024 or unit == "GiB":
            break
    return f"{n_bytes:.1f} {unit}"


def render(
    columns: Sequence[Column],
    rows: Sequence[Mapping[str, Any]],
    group: Callable[[Mapping[str, Any]], Any] | None = None,
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


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Iterable[str]) -> str:
    aligned = (
        cell.ljust(width) if column.left else cell.rjust(width)
        for column, width, cell in zip(columns, widths, cells, strict=True)
    )
    return "  ".join(aligned).rstrip()


def _spaced(lines: Sequence[str], groups: Sequence[Any]) -> Iterable[str]:
    for i, line in enumerate(lines):
        if i and groups[i] != groups[i - 1]:
            yield ""
        yield line
