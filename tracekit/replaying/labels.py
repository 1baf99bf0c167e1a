"""What a row of a result is called: its policy, and the parameters that tell it apart."""

from collections.abc import Sequence
from typing import Any

from tracekit.figures import settings
from tracekit.replaying.rows import Row


def labels_of(rows: Sequence[Row]) -> list[str]:
    """Return the name of each row: ``prefetch predictor=oracle spec_max=4``.

    A seed is always named. Of the other parameters, those are named that are not at their default
    and those that differ between rows of one policy.
    """
    values: dict[tuple[str, str], set[Any]] = {}
    for row in rows:
        for name, value in row.params.items():
            values.setdefault((row.policy, name), set()).add(value)

    def shown(row: Row) -> dict[str, Any]:
        default = type(row.replayed).Params()
        return {
            name: value
            for name, value in row.params.items()
            if name == "seed"
            or value != getattr(default, name)
            or len(values[row.policy, name]) > 1
        }

    return [" ".join(filter(None, [row.policy, settings(shown(row))])) for row in rows]
