"""Parameters of policies and predictors: from text or values to a dataclass."""

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from tracekit.trace.errors import UsageError

_IN_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def make_params(owner: str, params_type: type, values: Mapping[str, Any]) -> Any:
    """Return an instance of the dataclass `params_type` with its fields set from `values`.

    Parameters
    ----------
    owner : str
        Whose parameters they are, for error messages.
    params_type : type
        A dataclass with fields of type int, float, str or bool, or one of these or None. What its
        ``__post_init__`` refuses with a ValueError is refused here with the same words.
    values : mapping of str to text or value

    Raises
    ------
    UsageError
    """
    known = [field.name for field in fields(params_type)]
    hints = typing.get_type_hints(params_type)
    given = {}
    for name, value in values.items():
        if name not in known:
            have = f"it has: {', '.join(known)}" if known else "it has none"
            raise UsageError(f"{owner} has no parameter {name!r}; {have}.")
        given[name] = _value(f"{owner}.{name}", hints[name], value)
    try:
        return params_type(**given)
    except ValueError as error:
        raise UsageError(f"{owner}: {error}.") from error


def _value(name: str, hint: Any, value: Any) -> Any:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if type(None) in options and (value is None or value == "none"):
        return None
    wanted = next(option for option in options if option is not type(None))
    try:
        return _convert(wanted, value)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{name} takes {_IN_WORDS[wanted]}, not {value!r}.") from error


def _convert(wanted: type, value: Any) -> Any:
    if wanted is bool:
        if isinstance(value, bool):
            return value
        return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
    kind = {int: (str, Integral), float: (str, Real), str: str}[wanted]  # numpy's numbers, too
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError
    converted = wanted(value)
    if wanted is float and not math.isfinite(converted):
        raise ValueError
    return converted
