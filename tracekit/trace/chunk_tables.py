"""The tables of a trace made of the columns of a chunk.

In: columns as `chunks.Numbered` returns them. Out: Arrow tables, with the schema of the whole run.
"""

from collections.abc import Callable, Collection, Mapping

import numpy as np
import pyarrow as pa

from tracekit.trace.columns import from_numpy, to_numpy, to_table
from tracekit.trace.passes import kept_steps
from tracekit.trace.schema import MAY_BE_ABSENT, routing_schema, steps_schema

# Maps ids of tokens, int [n], to their embeddings, float32 [n, n_embd].
Embed = Callable[[np.ndarray], np.ndarray]
# What stands for a value that is not known, where it is no NaN.
UNKNOWN = {"residency": 255, "dropped": 255, "token": -1, "kept": 1}


def routing_table(columns: Mapping[str, np.ndarray], schema: pa.Schema) -> pa.Table:
    """Return the table of the routings of a chunk."""
    n_rows = len(columns["experts"])
    valid: dict[str, np.ndarray | None] = {}
    for name in ("weights", "logits", "gate_input"):
        if name in columns:
            valid[name] = ~np.isnan(columns[name])
    for name in ("residency", "dropped"):
        if name in columns:
            valid[name] = columns[name] != UNKNOWN[name]
    return to_table(columns, schema, n_rows, valid)


def schema_of(columns: Mapping[str, np.ndarray]) -> pa.Schema:
    """Return the schema of the routings of a run whose first chunk has `columns`.

    What no chunk tells has no column.
    """
    n_expert, n_embd = (
        columns[name].shape[1] if name in columns else None for name in ("logits", "gate_input")
    )
    schema = routing_schema(columns["experts"].shape[1], n_expert, n_embd)
    lacks = [name for name in MAY_BE_ABSENT if name not in columns]
    return pa.schema([each for each in schema if each.name not in lacks])


def without_null_columns(schema: pa.Schema, seen: Collection[str]) -> pa.Schema:
    """Return the schema without columns that were given, but of which no value was `seen`."""
    null = [name for name in MAY_BE_ABSENT if name not in seen]
    return pa.schema([each for each in schema if each.name not in null])


def steps_table(columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Return the table of the steps that the routings of a chunk imply, with their token ids."""
    key = columns["pass"].astype(np.int64) << 32 | columns["step"]
    at = np.unique(key, return_index=True)[1]
    steps = {name: columns[name][at] for name in ("turn", "pass", "step", "phase")}
    steps["kept"] = kept_steps(steps["turn"], steps["pass"], steps["step"])
    if "kept" in columns:
        steps["kept"] &= ~np.isin(key[at], key[~columns["kept"]])
    valid: dict[str, np.ndarray | None] = {}
    if "token" in columns:
        steps["token"] = columns["token"][at]
        valid["token"] = steps["token"] >= 0
    return to_table(steps, steps_schema(), len(at), valid)


def with_embeddings(steps: pa.Table, embed: Embed) -> pa.Table:
    """Return a table of steps with the embeddings of their tokens, null where an id is not known."""
    token = to_numpy(steps["token"], -1)
    embeddings = embed(token)
    field = steps_schema(embeddings.shape[1]).field("embedding")
    column = from_numpy(embeddings, field.type, len(token), token >= 0)
    return steps.append_column(field, column)
