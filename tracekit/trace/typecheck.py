"""Checks that the columns of a trace's files exist and have the types of the schema."""

import pyarrow as pa

from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts
from tracekit.trace.schema import layers_schema, routing_schema, steps_schema


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
    half = "gate_input" in names and _value_type(schema.field("gate_input").type) == pa.float16()
    expected = routing_schema(model.top_k, n_expert, n_embd, "f16" if half else "f32")
    _check(file, schema, expected, required=expected.names)


def check_steps_types(file: str, schema: pa.Schema, model: ModelFacts) -> None:
    """Check the columns of the steps; only the place of a step is required."""
    if "embedding" in schema.names and model.n_embd is None:
        raise TraceError(
            f"{file} has embeddings, but trace.json does not give the model's n_embd; add it."
        )
    expected = steps_schema(model.n_embd if "embedding" in schema.names else None)
    _check(file, schema, expected, required=("turn", "pass", "step", "phase"))


def check_layers_types(file: str, schema: pa.Schema) -> None:
    """Check the columns of the layers; the router's arrays may be absent."""
    _check(file, schema, layers_schema(), required=("layer", "expert_bytes", "dense_bytes"))


def _value_type(arrow_type: pa.DataType) -> pa.DataType | None:
    is_list = pa.types.is_fixed_size_list(arrow_type) or pa.types.is_list(arrow_type)
    return arrow_type.value_type if is_list else None


def _same(found: pa.DataType, expected: pa.DataType) -> bool:
    """Compare types, the names of list elements apart: writers differ in them."""
    if pa.types.is_fixed_size_list(expected):
        return (
            pa.types.is_fixed_size_list(found)
            and found.list_size == expected.list_size
            and found.value_type == expected.value_type
        )
    if pa.types.is_list(expected):
        return pa.types.is_list(found) and found.value_type == expected.value_type
    return found == expected


def _check_names(file: str, names: list[str]) -> None:
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise TraceError(f"{file} has two columns called {twice!r}; remove one.")


def _check(file: str, schema: pa.Schema, expected: pa.Schema, required) -> None:
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
        if not _same(found, field.type):
            raise TraceError(
                f"{file}, column {field.name}: its type is {found}, but this model's trace needs "
                f"{field.type}; write the column with that type, or correct trace.json."
            )
