"""The decode routings of a trace as a regular grid: tokens × MoE layers × slots."""

from dataclasses import dataclass

import numpy as np

from tracekit.trace import Trace, TraceError
from tracekit.trace.schema import DECODE


@dataclass(frozen=True)
class DecodeGrid:
    """Routings of T decoded tokens at L MoE layers, k experts each.

    A decoded token is routed at every MoE layer (a trace is validated for that), so the rows form a
    full grid, and whole-array arithmetic can index them by token and layer.

    Attributes
    ----------
    turn, step : int32 [T]
        The turn and the absolute context position of each token, in the order they ran.
    layer : int16 [L]
        The model's own number of each MoE layer.
    experts : uint16 [T, L, k]
        Selected experts in slot order.
    weights : float32 [T, L, k] or None
        Final routing weights (NaN: unknown); None unless they were asked for.
    """

    turn: np.ndarray
    step: np.ndarray
    layer: np.ndarray
    experts: np.ndarray
    weights: np.ndarray | None = None

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


def decode_grid(trace: Trace, weights: bool = False) -> DecodeGrid:
    """Read the decode routings of `trace` as a grid.

    Raises
    ------
    TraceError
        The trace holds no decoded token.
    """
    columns = ["turn", "phase", "step", "layer", "experts"] + (["weights"] if weights else [])
    routing = trace.routing(columns)
    rows = routing["phase"] == DECODE
    layers = np.unique(routing["layer"][rows])
    if not len(layers):
        raise TraceError(
            f"{trace.name} holds no decoded token; record with -n 1 or more to look at its decoding."
        )
    shape = (-1, len(layers))
    return DecodeGrid(
        turn=routing["turn"][rows].reshape(shape)[:, 0],
        step=routing["step"][rows].reshape(shape)[:, 0],
        layer=layers,
        experts=routing["experts"][rows].reshape(*shape, routing["experts"].shape[1]),
        weights=(
            routing["weights"][rows].reshape(*shape, routing["weights"].shape[1])
            if weights
            else None
        ),
    )


def dropped_slots(trace: Trace, grid: DecodeGrid) -> np.ndarray:
    """Say which slots of `grid`, the grid of `trace`, were recorded as dropped, bool [T, L, k]."""
    if not trace.has("dropped"):
        return np.zeros(grid.experts.shape, bool)
    rows = trace.routing(["phase", "dropped"])
    dropped: np.ndarray = rows["dropped"][rows["phase"] == DECODE] == 1
    return dropped.reshape(grid.experts.shape)
