"""From a name and parameters as text to a policy."""

import itertools
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import fields
from numbers import Integral, Real
from typing import Any

from tracekit.arguments import names
from tracekit.policies.base import POLICIES, Policy
from tracekit.trace.errors import UsageError

_IN_WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def load_policy(spec: str, params: Mapping[str, Any] | None = None) -> Policy:
    """Return the policy called `spec`.

    Parameters
    ----------
    spec : str
        A registered name, or ``module:Class`` for a class of the user's own.
    params : mapping of str to text or value, optional
        Values of the fields of the policy's ``Params``; text is read as the field's type.

    Raises
    ------
    UsageError
        The name is unknown, or a parameter is, or its value is not of the field's type.
    """
    cls = POLICIES.find(spec)
    made = make_params(spec, cls.Params, params or {})
    try:
        return cls(made)
    except TypeError as error:
        raise UsageError(f"{spec} cannot be made of its Params alone: {error}.") from error


def load_policies(
    policies: str | Policy | Iterable[str | Policy],
    params: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> list[Policy]:
    """Return an instance of each policy for each combination of its parameters.

    Parameters
    ----------
    policies : str, Policy, or several of them
        Instances are taken as they are.
    params : mapping, optional
        ``{"random.seed": 3}``, or several values in a list.
    seed : int
        Of each policy that draws random numbers and is given no other.

    Raises
    ------
    UsageError
        No policy, an unknown one, or a parameter that none has.
    """
    grids: dict[str, dict[str, list[Any]]] = {}
    for name, values in (params or {}).items():
        owner, _, field = name.rpartition(".")
        if not owner:
            raise UsageError(f"params takes POLICY.FIELD, as in 'random.seed', not {name!r}.")
        grids.setdefault(owner, {})[field] = names(values)
    chosen: list[Policy] = []
    used = set()
    for spec in names(policies):
        if isinstance(spec, Policy):
            chosen.append(spec)
            continue
        cls = POLICIES.find(spec)
        grid = {"seed": [seed]} if cls.stochastic else {}
        for owner in {spec, cls.name} & set(grids):
            grid |= grids[owner]
            used.add(owner)
        chosen += [
            load_policy(spec, dict(zip(grid, values, strict=True)))
            for values in itertools.product(*grid.values())
        ]
    if not chosen:
        raise UsageError("There is no policy to replay; name at least one.")
    for owner in grids:
        if owner not in used:
            raise UsageError(f"A parameter is set for {owner!r}, which is not replayed here.")
    return chosen


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
