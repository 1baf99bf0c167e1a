"""Rows and frames as plain values that JSON holds to the last digit, and back.

In: a row of a replay, or a frame. Out: lists, texts and numbers. They come from workers, and are kept in
files.
"""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np
import pandas as pd

from tracekit.policies import Policy
from tracekit.replaying.rows import Row
from tracekit.studies.units import Part

# The policy itself, and what follows from it or is found later.
_NOT_KEPT = ("replayed", "params", "bound")


def plain_row(row: Row) -> dict[str, Any]:
    """Return the figures of a row that has not been compared with its bound yet."""
    values = {f.name: getattr(row, f.name) for f in fields(row) if f.name not in _NOT_KEPT}
    return {name: _plain(value) for name, value in values.items() if value is not None}


def row_of_plain(record: Mapping[str, Any], policy: Policy) -> Row:
    """Return the row that `plain_row` took apart."""
    values: dict[str, Any] = {f.name: None for f in fields(Row)}
    return Row(**{**values, **record, "replayed": policy, "params": asdict(policy.params)})


def plain_part(part: Part) -> dict[str, Any]:
    """Return a part as plain values."""
    columns = []
    for name, values in part.frame.items():
        pairs = zip(values.tolist(), values.isna().tolist(), strict=True)
        plain = [None if is_missing else value for value, is_missing in pairs]
        columns.append([name, str(values.dtype), plain])
    return {"columns": columns, "notes": part.notes, "warnings": part.warnings}


def part_of_plain(record: Mapping[str, Any]) -> Part:
    """Return the part that `plain_part` took apart."""
    columns = {
        name: pd.Series(values, dtype=object).astype(kind)
        for name, kind, values in record["columns"]
    }
    return Part(pd.DataFrame(columns), record["notes"], record["warnings"])


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return dict(value) if isinstance(value, Mapping) else value
