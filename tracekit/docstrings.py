"""Docstrings as text for a page: a class's prose, and what its attributes mean.

In comes a class, out comes Markdown; nothing here knows what the class is for.
"""

import inspect
import re
from dataclasses import fields
from typing import Any

_SECTION = re.compile(r"^(\w[\w ]*)\n-+$", re.MULTILINE)
_ONLY_FIELD = re.compile(r"`(\w+)`: ([^\0]+)")
_ATTRIBUTE = re.compile(r"^(\w+(?:, \w+)*) : .+\n((?:    .+\n?)+)", re.MULTILINE)


def _docstring(cls: type[Any]) -> str:
    text = inspect.cleandoc(cls.__doc__ or "")
    return text.replace("``", "`")


def prose(cls: type[Any]) -> str:
    """Return the docstring of `cls` without its sections: the text for a reader of a page."""
    text = _SECTION.split(_docstring(cls), maxsplit=1)[0].strip()
    # `::` announces a block of code in reStructuredText; Markdown goes by the indent alone.
    return re.sub(r" ?::$", "", text, flags=re.MULTILINE)


def meanings(cls: type[Any]) -> dict[str, str]:
    """Return what each field of the dataclass `cls` means, by its docstring.

    The docstring has a section *Attributes*, or explains its only field: "`lag`: MoE layers back."

    Raises
    ------
    ValueError
        The docstring does not explain exactly the fields that the class has.
    """
    text, _, section = _docstring(cls).partition("Attributes\n----------\n")
    found = {
        name: " ".join(meaning.split())
        for names, meaning in _ATTRIBUTE.findall(section + "\n")
        for name in names.split(", ")
    }
    if only := _ONLY_FIELD.match(text):
        found[only[1]] = " ".join(only[2].split())
    names = [each.name for each in fields(cls)]
    if sorted(found) != sorted(names):
        raise ValueError(
            f"the docstring of {cls.__module__}.{cls.__qualname__} explains {sorted(found)}, "
            f"but its fields are {sorted(names)}"
        )
    return found
