"""What a row of a result is called: its policy, and the parameters that tell it apart."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tracekit.figures import settings
from tracekit.replaying.rows import Row


def labels_of(rows: Sequence[Row]) -> list[str]:
    """Return the name of each row: ``prefetch predictor=oracle spec_max=4``.

    A seed is always named. Of the other parameters, those are named that are not at their default
    and those that differ between rows of one policy.
    """
    several = differing((row.policy, row.params) for row in rows)

    def shown(row: Row) -> dict[str, Any]:
        default = type(row.replayed).Params()
        return {
            name: value
            for name, value in row.params.items()
            if name == "seed" or value != getattr(default, name) or (row.policy, name) in several
        }

    return [" ".join(filter(None, [row.policy, settings(shown(row))])) for row in rows]


def differing(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> set[tuple[str, str]]:
    """Return which parameters have several values among the rows of one policy.

    Parameters
    ----------
    rows : iterable of (policy, params)

    Returns
    -------
    set of (policy, name of a parameter)
    """
    values: dict[tuple[str, str], set[Any]] = {}
    for policy, params in rows:
        for name, value in params.items():
            values.setdefault((policy, name), set()).add(value)
    return {parameter for parameter, found in values.items() if len(found) > 1}
