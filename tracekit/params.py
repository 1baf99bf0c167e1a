"""Parameters of policies and predictors: from the text of options or values to a dataclass."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TypeVar

from tracekit.trace.build import Dataclass, build
from tracekit.trace.errors import UsageError

T = TypeVar("T", bound=Dataclass)


def make_params(owner: str, params_type: type[T], values: Mapping[str, object]) -> T:
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
        A name is no field of `params_type`, or a value is not of its field's type.
    """
    names = [field.name for field in fields(params_type)]
    for name in values:
        if name not in names:
            has = f"it has: {', '.join(names)}" if names else "it has none"
            raise UsageError(f"{owner} has no parameter {name!r}; {has}.")
    return build(params_type, values, owner, UsageError, joint=".", from_text=True)
