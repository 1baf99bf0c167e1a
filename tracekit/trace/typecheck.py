"""Checks that the columns of a trace's files exist and have the types of the schema.

In: a file's schema and the model's facts. Out: nothing, or a `TraceError`. No value is read.
"""

from collections.abc import Collection

import pyarrow as pa

from tracekit.trace.columns import value_type
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts
from tracekit.trace.schema import (
    LAYER_TIMES,
    MAY_BE_ABSENT,
    layers_schema,
    routing_schema,
    steps_schema,
)


def check_routing_types(file: str, schema: pa.Schema, model: ModelFacts) -> None:
    """Check the columns of the routings against the model's facts.

    Raises
    ------
    TraceError
        A column is missing or of another type or list width; the sentence names both.
    """
    names = schema.names
    _check_names(file, names)
    n_expert = model.n_expert if "logits" in names else None
    if "gate_input" in names and model.n_embd is None:
        raise TraceError(
            f"{file} has gate inputs, but trace.json does not give the model's n_embd; add it."
        )
    n_embd = model.n_embd if "gate_input" in names else None
    is_half = "gate_input" in names and _is_half(schema.field("gate_input").type)
    gate_dtype = "f16" if is_half else "f32"
    expected = routing_schema(model.top_k, n_expert, n_embd, gate_dtype, layer_times=True)
    may_lack = (*MAY_BE_ABSENT, *LAYER_TIMES)
    _check(file, schema, expected, required=set(expected.names).difference(may_lack))


def check_steps_types(file: str, schema: pa.Schema, model: ModelFacts) -> None:
    """Check the columns of the steps; only the place of a step is required.

    Raises
    ------
    TraceError
        As for `check_routing_types`.
    """
    if "embedding" in schema.names and model.n_embd is None:
        raise TraceError(
            f"{file} has embeddings, but trace.json does not give the model's n_embd; add it."
        )
    expected = steps_schema(model.n_embd if "embedding" in schema.names else None)
    _check(file, schema, expected, required=("turn", "pass", "step", "phase"))


def check_layers_types(file: str, schema: pa.Schema) -> None:
    """Check the columns of the layers; the router's arrays may be absent.

    Raises
    ------
    TraceError
        As for `check_routing_types`.
    """
    _check(file, schema, layers_schema(), required=("layer", "expert_bytes", "dense_bytes"))


def _is_half(arrow_type: pa.DataType) -> bool:
    return bool(value_type(arrow_type) == pa.float16())


def _is_same(found: pa.DataType, expected: pa.DataType) -> bool:
    """Compare types without the names of list elements: writers differ in them."""
    for is_list in (pa.types.is_fixed_size_list, pa.types.is_list):
        if is_list(expected) != is_list(found):
            return False
    if pa.types.is_fixed_size_list(expected) and found.list_size != expected.list_size:
        return False
    return bool(value_type(found) == value_type(expected))


def _check_names(file: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        repeated = next(n for n in names if names.count(n) > 1)
        raise TraceError(f"{file} has two columns called {repeated!r}; remove one.")


def _check(file: str, schema: pa.Schema, expected: pa.Schema, required: Collection[str]) -> None:
    _check_names(file, schema.names)
    for field in expected:
        if field.name not in schema.names:
            if field.name in required:
                raise TraceError(
                    f"{file} lacks the column {field.name!r} ({field.type}); "
                    "it is not of a trace, or of a damaged one: record or import it again."
                )
            continue
        found = schema.field(field.name).type
        if not _is_same(found, field.type):
            raise TraceError(
                f"{file}, column {field.name}: its type is {found}, but this model's trace needs "
                f"{field.type}; write the column with that type, or correct trace.json."
            )
