"""The decode routings of a trace as a regular grid: tokens × MoE layers × slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.trace import Trace, TraceError
from tracekit.trace.schema import DECODE


@dataclass(frozen=True)
class DecodeGrid:
    """Routings of T decoded tokens at L MoE layers, k experts each.

    A decoded token is routed at every MoE layer (a trace is validated for that), so its rows
    form a full grid, which whole-array arithmetic can index by token and layer.

    Attributes
    ----------
    turn, step : int32 [T]
        The turn and the absolute context position of each token, in the order they ran.
    layer : int16 [L]
        The model's own number of each MoE layer.
    experts : uint16 [T, L, k]
        Selected experts in slot order.
    """

    turn: np.ndarray
    step: np.ndarray
    layer: np.ndarray
    experts: np.ndarray

    @property
    def n_tokens(self) -> int:
        """Decoded tokens."""
        return len(self.step)

    @property
    def n_layers(self) -> int:
        """MoE layers."""
        return len(self.layer)

    @property
    def top_k(self) -> int:
        """Experts of one routing."""
        return int(self.experts.shape[2])


def decode_grid(trace: Trace) -> DecodeGrid:
    """Read the decode routings of `trace` as a grid.

    Raises
    ------
    TraceError
        The trace holds no decoded token.
    """
    rows = decode_rows(trace, ["turn", "step", "layer", "experts"])
    layers = np.unique(rows["layer"])
    if not len(layers):
        raise TraceError(
            f"{trace.name} holds no decoded token; record with -n 1 or more to look at its decoding."
        )
    shape = (-1, len(layers))
    return DecodeGrid(
        turn=rows["turn"].reshape(shape)[:, 0],
        step=rows["step"].reshape(shape)[:, 0],
        layer=layers,
        experts=rows["experts"].reshape(*shape, rows["experts"].shape[1]),
    )


def decode_weights(trace: Trace, grid: DecodeGrid) -> np.ndarray:
    """Read the final weights of `grid`, the grid of `trace`: float32 [T, L, k], NaN if unknown."""
    return decode_rows(trace, ["weights"])["weights"].reshape(grid.experts.shape)


def dropped_slots(trace: Trace, grid: DecodeGrid) -> np.ndarray:
    """Say which slots of `grid`, the grid of `trace`, were recorded as dropped, bool [T, L, k]."""
    if not trace.has("dropped"):
        return np.zeros(grid.experts.shape, bool)
    dropped: np.ndarray = decode_rows(trace, ["dropped"])["dropped"] == 1
    return dropped.reshape(grid.experts.shape)


def decode_rows(trace: Trace, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Read `columns` of the decode routings of `trace`, one row a routing."""
    routing = trace.routing(["phase", *columns])
    decode = routing["phase"] == DECODE
    return {name: routing[name][decode] for name in columns}
