"""Arguments as people pass them: a number of Python's or numpy's, one value or several.

In: what a caller gave. Out: an int or a list. This module knows nothing of what the values mean.
"""

from collections.abc import Iterable
from numbers import Integral
from typing import Any

from tracekit.trace.build import shown
from tracekit.trace.errors import UsageError


def whole(name: str, value: object, least: int, what: str = "a whole number") -> int:
    """Return `value`, which argument `name` was given, as an int of `least` or more.

    Raises
    ------
    UsageError
        `value` is not a whole number of at least `least`.
    """
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise UsageError(f"{name} takes {what}, {least} or more, not {shown(value)}.")
    return int(value)


def as_list(values: Any) -> list[Any]:
    """Return one value, or several, as a list; a text is one value, and so is an array without axes."""
    if getattr(values, "ndim", None) == 0:
        return [values[()]]
    if isinstance(values, Iterable) and not isinstance(values, str):
        return list(values)
    return [values]


def names_in(values: object) -> list[Any]:
    """Return names as a list; a text is one name, or several with commas between."""
    if isinstance(values, str):
        return [name.strip() for name in values.split(",")]
    return as_list(values)
