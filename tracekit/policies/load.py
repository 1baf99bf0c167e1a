"""From names and parameters to policies.

In go names, classes or instances and parameters as text or values; out come instances. Nothing
here knows a trace.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from tracekit.arguments import names_in
from tracekit.params import make_params
from tracekit.policies.base import POLICIES, Policy
from tracekit.trace.build import shown
from tracekit.trace.errors import UsageError


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
    made: object = make_params(spec, cls.Params, params or {})
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
        The seed of each policy that draws random numbers and is given no other.

    Raises
    ------
    UsageError
        There is no policy, or one is unknown, or no policy has a parameter that is set.
    """
    grids: dict[str, dict[str, list[Any]]] = {}
    for name, values in (params or {}).items():
        owner, _, field = name.rpartition(".")
        if not owner:
            raise UsageError(f"params takes POLICY.FIELD, as in 'random.seed', not {shown(name)}.")
        grids.setdefault(owner, {})[field] = names_in(values)
    chosen: list[Policy] = []
    used = set()
    for spec in names_in(policies):
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
            raise UsageError(f"A parameter is set for {shown(owner)}, which is not replayed here.")
    return chosen
