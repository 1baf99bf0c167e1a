"""What the table of layers says: the sizes of experts, and the arrays of the routers.

In: the columns of ``layers.parquet``, read and checked one by one. Out: sizes in bytes and arrays in
their shapes. This module knows nothing of the routings; which layers routed, it is told.
"""

from functools import cached_property

import numpy as np
import pyarrow as pa

from tracekit.trace.checked import CheckedColumns, locked
from tracekit.trace.checks import Arrays, Column, Where, check_layer_numbers, first_true
from tracekit.trace.columns import to_numpy
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts

# No expert of any model comes near a TiB, and sums of sizes up to it stay within 64 bits.
MAX_EXPERT_BYTES = 1 << 40


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
        self._columns = columns
        self._name = name

    @cached_property
    def scalars(self) -> dict[str, np.ndarray]:
        """`layer`, `expert_bytes` and `dense_bytes` of each row (-1: null), read-only."""
        columns = self._columns.read(["layer", "expert_bytes", "dense_bytes"])
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
                "(expert_bytes), so a cache cannot be replayed; add the size to its layers."
            )
        return np.array(sizes, dtype=np.int64)

    def array(self, layer: int, name: str) -> np.ndarray | None:
        """Return an array of a layer, as `Trace.layer_array` documents it.

        Raises
        ------
        TraceError
            It has another number of values than the model's facts ask for, or one not finite.
        """
        rows = np.flatnonzero(self.scalars["layer"] == layer)
        if len(rows) == 0 or name not in self._columns.names:
            return None
        row = int(rows[0])
        value: pa.ChunkedArray = self._columns.rows.read([name], row, row + 1)[name]
        if value.null_count:
            return None
        values = to_numpy(value.chunk(0).flatten(), np.nan)
        place = f"{self._columns.where().at(row)}, column {name}"
        return _shaped(place, layer, name, values, self._columns.model)


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
    at = first_true(~np.isfinite(values))
    if at is not None:
        raise TraceError(
            f"{place}: value {at} of layer {layer} is {values[at]}, not a finite number; record "
            "the trace again."
        )
    return values.reshape(shape)
