"""The table of layers: the sizes of experts, and the arrays of the routers.

In: what is known of each layer; or the columns of ``layers.parquet``, read and checked one by one.
Out: that table; or sizes in bytes and arrays in their shapes. Which layers routed, this module
is told.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.trace.checked import CheckedColumns, locked
from tracekit.trace.checks import Arrays, Column, Where, check_layer_numbers, first_true
from tracekit.trace.columns import Values, cast, numpy_type, to_numpy, to_table
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts
from tracekit.trace.rows import TableRows
from tracekit.trace.schema import layers_schema
from tracekit.trace.typecheck import check_layers_types

# No expert of any model comes near a TiB, and sums of sizes up to it stay within 64 bits.
MAX_EXPERT_BYTES = 1 << 40
ARRAYS = ("router_matrix", "router_bias", "selection_bias", "norm_weight")


class LayerTable:
    """The layers of a model, dense ones too.

    Parameters
    ----------
    columns : CheckedColumns
        Of ``layers.parquet``.
    name : str
        What sentences call the trace.
    """

    def __init__(self, columns: CheckedColumns, name: str):
        self.columns = columns
        self._name = name

    @cached_property
    def scalars(self) -> dict[str, np.ndarray]:
        """`layer`, `expert_bytes` and `dense_bytes` of each row (-1: null), read-only."""
        columns = self.columns.read(["layer", "expert_bytes", "dense_bytes"])
        return {name: locked(values) for name, values in columns.items()}

    def expert_bytes(self, layers: np.ndarray) -> np.ndarray:
        """Return the bytes of one expert of each of `layers`, int64 [L].

        Raises
        ------
        TraceError
            The size of a layer's experts is not known. Taken as 0, that layer would always hit.
        """
        columns = self.scalars
        size = dict(zip(columns["layer"].tolist(), columns["expert_bytes"].tolist(), strict=True))
        sizes = [size.get(layer, -1) for layer in layers.tolist()]
        if -1 in sizes:
            layer = layers[sizes.index(-1)]
            raise TraceError(
                f"{self._name} does not say how many bytes an expert of layer {layer} has "
                "(expert_bytes), so nothing can be said in MiB; add it: `tracekit import` takes "
                "--model PATH or --expert-mib M."
            )
        return np.array(sizes, dtype=np.int64)

    def routed(self, layers: np.ndarray) -> np.ndarray:
        """Return `layers`, those of the routings, or if there are none those that have a size."""
        if len(layers):
            return locked(layers)
        columns = self.scalars
        return locked(columns["layer"][columns["expert_bytes"] >= 0])

    def array(self, layer: int, name: str) -> np.ndarray | None:
        """Return an array of a layer, as `Trace.layer_array` documents it.

        Raises
        ------
        TraceError
            It has another number of values than the model's facts ask for, or one not finite;
            -inf may stand in a bias.
        """
        rows = np.flatnonzero(self.scalars["layer"] == layer)
        if len(rows) == 0 or name not in self.columns.names:
            return None
        row = int(rows[0])
        value: pa.ChunkedArray = self.columns.rows.read([name], row, row + 1)[name]
        if value.null_count:
            return None
        values = to_numpy(value.chunk(0).flatten(), np.nan)
        place = f"{self.columns.where().at(row)}, column {name}"
        return _shaped(place, layer, name, values, self.columns.model)


def layers_table(layers: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return the table of layers for one mapping a layer; a value that it lacks is null."""
    schema = layers_schema()
    columns: dict[str, Values] = {}
    valid = {}
    for field in schema:
        given = [layer.get(field.name) for layer in layers]
        if pa.types.is_list(field.type):
            columns[field.name] = given
        else:
            numbers = [-1 if value is None else value for value in given]
            columns[field.name] = cast(numbers, numpy_type(field.type), field.name)
            valid[field.name] = np.array([v is not None for v in given], dtype=bool)
    return to_table(columns, schema, len(layers), valid)


def check_table(table: pa.Table, file: str, model: ModelFacts) -> dict[str, np.ndarray]:
    """Check a table of layers as a reader of the finished trace does, the routers' arrays too.

    Returns
    -------
    dict of str to numpy.ndarray
        `layer`, `expert_bytes` and `dense_bytes` of each row (-1: null).

    Raises
    ------
    TraceError
    """
    check_layers_types(file, table.schema)
    columns = CheckedColumns(TableRows(table), file, model)
    layers = LayerTable(columns, file)
    check_layers(columns.where(), layers.scalars, model)
    for layer in layers.scalars["layer"].tolist():
        for name in ARRAYS:
            layers.array(layer, name)
    return layers.scalars


def check_layers(where: Where, layers: Arrays, model: ModelFacts) -> None:
    """Check layer numbers and sizes; null sizes (-1) may stand where no replay needs them.

    Parameters
    ----------
    where : Where
    layers : mapping
        `layer`, `expert_bytes`, `dense_bytes`, each [n].
    model : ModelFacts

    Raises
    ------
    TraceError
    """
    numbers = layers["layer"]
    check_layer_numbers(Column(where, "layer", numbers), model)
    _, first = np.unique(numbers, return_index=True)
    if len(first) < len(numbers):
        row = int(np.setdiff1d(np.arange(len(numbers)), first)[0])
        raise TraceError(
            f"{where.at(row)}, column layer: layer {numbers[row]} stands twice; remove one."
        )
    for name, smallest in (("expert_bytes", 1), ("dense_bytes", 0)):
        values = layers[name]
        at = first_true((values != -1) & ((values < smallest) | (values > MAX_EXPERT_BYTES)))
        if at is not None:
            raise TraceError(
                f"{where.at(at)}, column {name}: {values[at]} bytes is no size of layer "
                f"{numbers[at]}; give its true size, or null if it is not known."
            )


def _shaped(place: str, layer: int, name: str, values: np.ndarray, model: ModelFacts) -> np.ndarray:
    """Return an array of a layer in its shape: [n_expert, n_embd], [n_expert] or [n_embd]."""
    shape: tuple[int, ...] = (model.n_expert,)
    if name in ("router_matrix", "norm_weight"):
        if model.n_embd is None:
            raise TraceError(f"{place}: trace.json does not give the model's n_embd; add it.")
        shape = (model.n_embd,) if name == "norm_weight" else (model.n_expert, model.n_embd)
    if values.size != int(np.prod(shape)):
        raise TraceError(
            f"{place}: layer {layer} has {values.size} values where "
            f"{' × '.join(map(str, shape))} are needed; record the trace again."
        )
    wrong = ~np.isfinite(values)
    if name in ("router_bias", "selection_bias"):
        wrong &= values != -np.inf  # the expert is never selected
    at = first_true(wrong)
    if at is not None:
        raise TraceError(
            f"{place}: value {at} of layer {layer} is {values[at]}, not a finite number; record "
            "the trace again."
        )
    return values.reshape(shape)
