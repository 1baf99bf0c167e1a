"""Arguments as people pass them: a number of Python's or numpy's, one or several."""

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from tracekit.trace.errors import UsageError


def whole(name: str, value: Any, least: int, what: str = "a whole number") -> int:
    """Return `value`, which argument `name` was given, as an int of `least` or more.

    Raises
    ------
    UsageError
        It is none.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} takes {what}, {least} or more, not {value!r}.")
    return int(value)


def as_list(values: Any) -> list[Any]:
    """Return one value, or several, as a list; a text is one value."""
    several = isinstance(values, Iterable) and not isinstance(values, str)
    return list(values) if several else [values]


def names_in(values: Any) -> list[Any]:
    """Return names as a list; a text is one, or several with commas between."""
    return (
        [name.strip() for name in values.split(",")] if isinstance(values, str) else as_list(values)
    )
