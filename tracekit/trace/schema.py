"""The trace format: the files of a ``NAME.trace`` directory, their columns and codes."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # pyarrow is imported when a file is read or written: the codes are for all
    import pyarrow as pa

SCHEMA_VERSION = 3

PREFILL, DECODE = 0, 1
MISS, HIT, PREFETCHED = 0, 1, 2

FACTS_FILE = "trace.json"
ROUTING_FILE = "routing.parquet"
STEPS_FILE = "steps.parquet"
LAYERS_FILE = "layers.parquet"

# A file without one of these is read as if the column were null in every row.
MAY_BE_ABSENT: tuple[str, ...] = ("weights", "residency", "dropped")
LAYER_TIMES: tuple[str, ...] = ("wait_ms", "compute_ms")
SINCE_VERSION_3: tuple[str, ...] = (
    "start_s",
    "cpu_ms",
    "evict_ms",
    "major_faults",
    "mem_available_bytes",
)


def routing_schema(
    top_k: int,
    n_expert: int | None = None,
    n_embd: int | None = None,
    gate_dtype: str = "f32",
    layer_times: bool = False,
) -> "pa.Schema":
    """Columns of ``routing.parquet``: one row per (pass, step, layer), in (pass, layer, step) order.

    Parameters
    ----------
    top_k : int
        Experts of one routing; the width of `experts`, `weights`, `residency`, `dropped`. A file
        may lack the last three, see `MAY_BE_ABSENT`.
    n_expert : int, optional
        Width of `logits`; None leaves the column out.
    n_embd : int, optional
        Width of `gate_input`; None leaves the column out.
    gate_dtype : {"f32", "f16"}
        Element type of `gate_input`.
    layer_times : bool
        Whether there are `LAYER_TIMES`: of a layer that ran several tokens in a pass, on its last row.
    """
    import pyarrow as pa

    gate_type = {"f32": pa.float32(), "f16": pa.float16()}[gate_dtype]
    fields = [
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("pass", pa.int32(), nullable=False),
        pa.field("phase", pa.uint8(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("layer", pa.int16(), nullable=False),
        pa.field("experts", pa.list_(pa.uint16(), top_k), nullable=False),
        pa.field("weights", pa.list_(pa.float32(), top_k)),
        pa.field("residency", pa.list_(pa.uint8(), top_k)),
        pa.field("dropped", pa.list_(pa.uint8(), top_k)),
    ]
    if n_expert is not None:
        fields.append(pa.field("logits", pa.list_(pa.float32(), n_expert)))
    if n_embd is not None:
        fields.append(pa.field("gate_input", pa.list_(gate_type, n_embd)))
    if layer_times:
        fields += [pa.field(name, pa.float32()) for name in LAYER_TIMES]
    return pa.schema(fields)


def absent_types(file: str, top_k: int) -> "dict[str, pa.DataType]":
    """Return the types of the columns that the `file` of a trace may lack."""
    if file == ROUTING_FILE:
        schema, names = routing_schema(top_k, layer_times=True), (*MAY_BE_ABSENT, *LAYER_TIMES)
    elif file == STEPS_FILE:
        schema, names = steps_schema(), SINCE_VERSION_3
    else:
        return {}
    return {name: schema.field(name).type for name in names}


def steps_schema(n_embd: int | None = None) -> "pa.Schema":
    """Columns of ``steps.parquet``: one row per (pass, step), in that order.

    `kept` is false of a step that did not stay: a drafted token that was rejected, a prompt that
    was cancelled. A pass of several steps has its totals (wall_ms … mem_available_bytes) on its last
    row; they are null on the others.
    """
    import pyarrow as pa

    fields = [
        pa.field("turn", pa.int32(), nullable=False),
        pa.field("pass", pa.int32(), nullable=False),
        pa.field("step", pa.int32(), nullable=False),
        pa.field("phase", pa.uint8(), nullable=False),
        pa.field("kept", pa.bool_()),  # since version 2; null: kept
        pa.field("token", pa.int32()),
        pa.field("piece", pa.binary()),
        pa.field("wall_ms", pa.float64()),
        pa.field("io_ms", pa.float64()),
        pa.field("stall_ms", pa.float64()),
        pa.field("read_bytes", pa.int64()),
        pa.field("lookups", pa.int32()),
        pa.field("hits", pa.int32()),
        pa.field("start_s", pa.float64()),
        pa.field("cpu_ms", pa.float64()),
        pa.field("evict_ms", pa.float64()),
        pa.field("major_faults", pa.int64()),
        pa.field("mem_available_bytes", pa.int64()),
    ]
    if n_embd is not None:
        fields.append(pa.field("embedding", pa.list_(pa.float32(), n_embd)))
    return pa.schema(fields)


def layers_schema() -> "pa.Schema":
    """Columns of ``layers.parquet``: one row per layer, dense ones with null ``expert_bytes``."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("layer", pa.int16(), nullable=False),
            pa.field("expert_bytes", pa.int64()),
            pa.field("dense_bytes", pa.int64()),
            pa.field("router_matrix", pa.list_(pa.float32())),  # row-major [n_expert, n_embd]
            pa.field("router_bias", pa.list_(pa.float32())),  # [n_expert], part of the logits
            pa.field("selection_bias", pa.list_(pa.float32())),  # [n_expert], added to the scores
            pa.field("norm_weight", pa.list_(pa.float32())),  # [n_embd], of the norm before routing
        ]
    )
