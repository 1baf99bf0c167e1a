"""Figures: how a result declares a column of figures, and how a figure is written.

A result is a dataclass whose fields are columns. The annotation of such a field declares which unit
it has and what it means; `columns_of` reads that back. Tables, frames and reference pages all follow
from these declarations, and nothing is guessed from a name.

>>> @dataclass(frozen=True)
... class Totals:
...     lookups: Annotated[int, Declared(Unit.COUNT, "expert lookups")]
...     hits: Annotated[int | None, Declared(Unit.COUNT, "lookups that hit")]
"""

import types
import typing
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

MIB = 2**20
NONE = "-"
UNBROKEN = "\N{NO-BREAK SPACE}"  # between a figure and its unit, where lines are wrapped


class Unit(Enum):
    """What a figure counts or measures."""

    NAME = "name"
    COUNT = "count"
    BYTES = "bytes"
    MIB = "MiB"
    FRACTION = "fraction"
    MS = "ms"
    SECONDS = "s"
    PER_SECOND = "1/s"
    FLAG = "true or false"
    MAPPING = "mapping"
    ROWS = "rows"


@dataclass(frozen=True)
class Figure:
    """The declaration of one column of figures.

    Attributes
    ----------
    name : str
        Of the column, in JSON, CSV and frames.
    unit : Unit
    means : str
        What it says, in one phrase.
    nullable : bool
        It is null where there is no such figure.
    """

    name: str
    unit: Unit
    means: str
    nullable: bool = False

    @property
    def header(self) -> str:
        """The column's name above a table, one word a line, with the unit it is printed in."""
        printed = {Unit.BYTES: "MiB", Unit.MIB: "MiB", Unit.FRACTION: "%", Unit.MS: "ms"}
        words = [word for word in self.name.split("_") if word not in ("bytes", "mib", "ms")]
        return "\n".join([*words, *filter(None, [printed.get(self.unit)])])

    def write(self, value: Any) -> str:
        """Write a value of this column for a table, ``-`` for null."""
        if not known(value):
            return NONE
        if self.unit is Unit.BYTES:
            return mib(value)
        if self.unit is Unit.FRACTION:
            return percent(value)
        return f"{value:.4f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Declared:
    """What the annotation of a result's field declares of the column: its unit and its meaning."""

    unit: Unit
    means: str


def columns_of(result: type) -> tuple[Figure, ...]:
    """Return the columns that the dataclass `result` declares, in their order.

    A column is nullable if its annotation allows None.
    """
    hints = typing.get_type_hints(result, include_extras=True)
    return tuple(
        Figure(each.name, declared.unit, declared.means, _allows_none(hints[each.name]))
        for each in fields(result)
        for declared in getattr(hints[each.name], "__metadata__", ())
        if isinstance(declared, Declared)
    )


def _allows_none(annotated: Any) -> bool:
    value_type = typing.get_args(annotated)[0]
    return typing.get_origin(value_type) in (types.UnionType, typing.Union) and type(
        None
    ) in typing.get_args(value_type)


# ---- writing ----------------------------------------------------------------------------------


def known(value: Any) -> bool:
    """Say whether `value` is neither None nor NaN."""
    return value is not None and value == value


def percent(rate: float | None, digits: int = 2) -> str:
    """Write a fraction in percent, ``-`` for null; only a whole is written 100.

    A rate just below a whole gets as many digits as tell it from one.
    """
    if rate is None or not known(rate):
        return NONE
    text = f"{100 * rate:.{digits}f}"
    while rate < 1 and text.startswith("100") and digits < 8:
        digits += 1
        text = f"{100 * rate:.{digits}f}"
    return text


def points(difference: float | None) -> str:
    """Write a difference of fractions in points, with its sign; 0.0 has none."""
    if difference is None or not known(difference):
        return NONE
    return f"{100 * difference:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0")


def mib(size: float | None) -> str:
    """Write bytes in MiB without the unit, ``-`` for null; small models need more digits."""
    if size is None or not known(size):
        return NONE
    value = size / MIB
    digits = 1 if value >= 100 or value == 0 else 2 if value >= 1 else 4
    return f"{value:.{digits}f}"


def in_mib(size: float | None, space: str = " ") -> str:
    """Write bytes in MiB with the unit, ``-`` for null: whole ones from 100 on, else three digits."""
    if size is None or not known(size):
        return NONE
    value = size / MIB
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + f"{space}MiB"


def budget_mib(size: int) -> str:
    """Write a cache budget in MiB without the unit, with all digits that a user would type."""
    return f"{round(size / MIB, 4):.12g}"


def exact_mib(cache_bytes: int) -> str:
    """Write a budget in MiB in the fewest digits that ``--cache-mib`` reads back as the same bytes."""
    digits = 0
    while round(float(f"{cache_bytes / MIB:.{digits}f}") * MIB) != cache_bytes:
        digits += 1
    return f"{cache_bytes / MIB:.{digits}f}"


def in_bytes(size: float) -> str:
    """Write bytes in the unit that suits them: ``9.6 MiB``."""
    if size < 1024:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1024 or unit == "GiB":
            break
    return f"{size:.1f} {unit}"


def counted(n: int, one: str, more: str | None = None, grouped: bool = False) -> str:
    """Write a number and what it counts: ``1 pass``, ``2 passes``; grouped: ``1,000 tokens``."""
    return f"{n:,}" * grouped + f"{n}" * (not grouped) + f" {one if n == 1 else more or one + 's'}"


def joined(names: Sequence[str]) -> str:
    """Write ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([*([", ".join(names[:-1])] if names[:-1] else []), *names[-1:]])


def first_of(items: Sequence[str], most: int = 6) -> str:
    """Write the first items, and how many more there are: ``a, b and 4 more``."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more


def quoted(names: Iterable[Any]) -> str:
    """Write names in quotes, sorted: ``'a', 'b'``."""
    return ", ".join(sorted(map(repr, names)))


def settings(params: Mapping[str, Any]) -> str:
    """Write parameters and their values: ``predictor=oracle horizon=1``.

    A value that would read as several words stands in quotes.
    """
    return " ".join(f"{name}={_one_word(str(value))}" for name, value in params.items())


def _one_word(text: str) -> str:
    several = not text or text[0] in "'\"" or any(c.isspace() for c in text)
    return repr(text) if several else text


# ---- text that comes from a file ----------------------------------------------------------------

# What joins or parts letters within words of many scripts, and a place where a word may be broken.
_JOINERS = "\N{ZERO WIDTH NON-JOINER}\N{ZERO WIDTH JOINER}\N{SOFT HYPHEN}"
# With these a spreadsheet takes a text for a formula, and runs it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_QUOTE = "'"


def printable(text: str) -> str:
    """Return `text` for one line of a terminal: what is no letter, sign or space is escaped.

    Control characters could write to the terminal, and those of direction turn the text around.
    """
    return "".join(
        c if c.isprintable() or unicodedata.category(c) == "Zs" else _escaped(c) for c in text
    )


def visible(text: str) -> str:
    """Return `text` for a page: line breaks and tabs stay, and so does what words are made of.

    What is escaped are control characters, halves of characters, and what turns the text around or
    is not seen.
    """
    return "".join(
        _escaped(c)
        if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t" + _JOINERS
        else c
        for c in text
    )


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


def csv_cell(value: Any) -> Any:
    """Return `value` for a cell of a CSV file; text that would run as a formula gets an apostrophe.

    Text that begins with an apostrophe gets one too, so that `from_csv_cell` can take it away.
    """
    if isinstance(value, str) and value.startswith((*_FORMULA, _QUOTE)):
        return _QUOTE + value
    return value


def from_csv_cell(text: str) -> str:
    """Return the text that `csv_cell` was given."""
    return text.removeprefix(_QUOTE)
