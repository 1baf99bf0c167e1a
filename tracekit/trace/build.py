"""One way from JSON, TOML and the text of options to dataclasses with typed fields.

In: a dataclass, and a mapping of field names to values. Out: an instance, or an error whose sentence
names the field, the value and the type it should have. This module knows nothing of traces, studies
or policies; its callers decide what happens to names that are no field.

It is not cattrs, which was tried: by default that takes "8", 2.7 and True for whole numbers and NaN
for a number, does not name the value that it refuses, needs a hook for ``float | list[float]``, and
would be two more packages to install on a phone.
"""

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, Field, fields
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import (
    Any,
    ClassVar,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from tracekit.trace.errors import TracekitError


class Dataclass(Protocol):
    """What every dataclass is to a type checker."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]


T = TypeVar("T", bound=Dataclass)

_WRONG = (ValueError, TypeError, KeyError, OverflowError)
_SHOWN = 60  # characters of a value in a sentence
_TOO_LARGE = 1 << 64  # for a whole number: none of those that are asked for needs as much
_SPELLINGS = {
    int: re.compile(r"[-+]?[0-9]{1,18}"),
    float: re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"),
}
_TRUTH = {"true": True, "1": True, "false": False, "0": False}
# One of a type, and several of it.
_WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("text", "texts"),
    bool: ("true or false", "true or false"),
    Any: ("a value", "values"),
}
_CONTAINERS = {list: ("a list of", "lists of"), dict: ("a table of named", "tables of named")}


def build(
    cls: type[T],
    values: Mapping[str, object],
    owner: str,
    error: type[TracekitError],
    *,
    joint: str = ": ",
    from_text: bool = False,
) -> T:
    """Return an instance of the dataclass `cls`, its fields set from `values`.

    A field is of type int, float, str, bool or of another class, a list or dict of these, one of
    several, or None. A number is finite and no bool. Names in `values` that are no field are passed
    over. What the class's ``__post_init__`` refuses with a ValueError is refused with those words.

    Parameters
    ----------
    cls : type
    values : mapping
    owner : str
        Whose values they are, for sentences: a file, a table in it, a policy.
    error : type
        The class of the errors to raise.
    joint : str
        What stands between the owner and a field in a sentence.
    from_text : bool
        Read numbers and truth values from text too; ``none`` is None.

    Raises
    ------
    TracekitError
        Of the class `error`: a field without a default is missing, or a value is refused.
    """
    hints = get_type_hints(cls)
    given: dict[str, object] = {}
    for field in fields(cls):
        name = field.name
        if name in values:
            try:
                given[name] = _read(values[name], hints[name], from_text)
            except _WRONG as wrong:
                wanted = f"takes {_in_words(hints[name])}, not {shown(values[name])}"
                raise error(f"{owner}{joint}{name} {wanted}.") from wrong
        elif field.default is MISSING and field.default_factory is MISSING:
            raise error(f"{owner} lacks {name!r}; add it.")
    try:
        return cls(**given)
    except ValueError as refusal:
        raise error(f"{owner}: {refusal}.") from refusal


def shown(value: object) -> str:
    """Return `value` as a sentence shows it: as Python writes it, cut to 60 characters."""
    try:
        text = repr(value)
    except ValueError:  # Python does not print whole numbers of more than 4,300 digits
        text = "one of thousands of digits"
    except RecursionError:
        text = "one that is nested too deeply"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def on_one_line(text: str, most: int = 200) -> str:
    """Return `text` as a part of a sentence: escaped where it cannot be printed, and not too long."""
    line = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[: most + 1])
    return line if len(text) <= most else f"{line[: most - 1]}…"


@overload
def spelt(text: str, kind: type[int]) -> int: ...


@overload
def spelt(text: str, kind: type[float]) -> float: ...


def spelt(text: str, kind: type[int] | type[float]) -> int | float:
    """Return the number that `text` spells in plain digits, with a point or exponent if not whole.

    Python itself reads more: ``1_000``, digits of other scripts, ``nan``. Whole numbers have up to 18
    digits, as many as fit into 64 bits.

    Raises
    ------
    ValueError
        It spells none, or one that is not finite.
    """
    if not _SPELLINGS[kind].fullmatch(text):
        raise ValueError(text)
    number = kind(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _read(value: object, hint: Any, from_text: bool) -> object:
    """Return `value` as the type `hint`; one of `_WRONG` is raised if it is of another."""
    for kind in _kinds(hint):
        with suppress(*_WRONG):
            return _read_one(value, kind, get_origin(kind) or kind, from_text)
    raise ValueError


def _read_one(value: Any, hint: Any, kind: Any, from_text: bool) -> object:
    is_text = from_text and isinstance(value, str)
    if kind is Any or (kind is NoneType and is_text and value == "none"):
        return None if kind is NoneType else value
    if kind is bool and from_text:
        return _TRUTH[str(value).lower()]
    if kind in (int, float):
        if is_text:
            return spelt(value.strip(" "), kind)
        of_numbers = isinstance(value, Integral if kind is int else Real)  # numpy's, too
        number = kind(value) if of_numbers and not isinstance(value, bool) else math.nan
        if not math.isfinite(number) or (kind is int and abs(number) >= _TOO_LARGE):
            raise ValueError
        return number
    if not isinstance(value, kind):
        raise TypeError
    if kind is list:
        return [_read(each, get_args(hint)[0], from_text) for each in value]
    if kind in (dict, Mapping):
        key_hint, value_hint = get_args(hint)
        return {
            _read(k, key_hint, from_text): _read(v, value_hint, from_text) for k, v in value.items()
        }
    return value


def _kinds(hint: Any) -> list[Any]:
    """Return the types of a union, None first: as text it is ``none``, which is text as well."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return sorted(kinds, key=lambda kind: kind is not NoneType)


def _in_words(hint: Any, several: bool = False) -> str:
    """Return the type `hint` in words; None goes without saying."""
    words = []
    for kind in _kinds(hint):
        plain = dict if get_origin(kind) is Mapping else get_origin(kind) or kind
        if plain in _CONTAINERS:
            inside = _in_words(get_args(kind)[-1], several=True)
            words.append(f"{_CONTAINERS[plain][several]} {inside}")
        elif plain is not NoneType:
            name = getattr(plain, "__name__", plain)
            words.append(_WORDS.get(plain, (f"a {name}", f"values of {name}"))[several])
    return " or ".join(words)
