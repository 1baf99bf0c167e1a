"""The decode routings of a trace as a regular grid: tokens × MoE layers × slots."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.routing.cut import whole_decode_rows
from tracekit.trace import Trace, TraceError
from tracekit.trace.passes import by_token
from tracekit.trace.schema import DECODE


@dataclass(frozen=True)
class DecodeGrid:
    """Routings of T decoded tokens at L MoE layers, k experts each.

    A decoded token is routed at every MoE layer (a trace is validated for that), so its rows
    form a full grid, which whole-array arithmetic can index by token and layer.

    Attributes
    ----------
    turn, step : int32 [T]
        The turn and the absolute context position of each token, in the order they ran. Tokens of
        one pass stand by step; a drafted token that was rejected is one of them.
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

    def first(self, n_tokens: int) -> "DecodeGrid":
        """Return the grid of the first `n_tokens` tokens, or of all if there are fewer."""
        return DecodeGrid(
            self.turn[:n_tokens], self.step[:n_tokens], self.layer, self.experts[:n_tokens]
        )


def decode_grid(trace: Trace, kept_only: bool = False) -> DecodeGrid:
    """Read the decode routings of `trace` as a grid.

    Parameters
    ----------
    trace : Trace
    kept_only : bool
        Leave out drafted tokens that were rejected.

    Raises
    ------
    TraceError
        The trace holds no decoded token.
    """
    rows = decode_rows(trace, ["turn", "step", "layer", "experts"])
    layers = np.unique(rows["layer"])
    if not len(layers):
        raise no_decoded_token(trace)
    shape = (-1, len(layers))
    which: np.ndarray | slice = slice(None)
    if kept_only:
        kept = trace.kept[trace.steps(["phase"])["phase"] == DECODE]
        which = kept[: len(rows["turn"]) // len(layers)]  # a cut token has no place in a grid
    return DecodeGrid(
        turn=rows["turn"].reshape(shape)[which, 0],
        step=rows["step"].reshape(shape)[which, 0],
        layer=layers,
        experts=rows["experts"].reshape(*shape, rows["experts"].shape[1])[which],
    )


def no_decoded_token(trace: Trace) -> TraceError:
    """Return the error for a trace without decoding."""
    return TraceError(
        f"{trace.name} holds no decoded token; {with_decoded(trace, 1)} to look at its decoding."
    )


def with_decoded(trace: Trace, n: int) -> str:
    """Say how a trace like this one comes to `n` decoded tokens in a turn."""
    if trace.facts.source == "imported":
        number = "a generated token" if n == 1 else f"{n} generated tokens"
        return f"import a run with {number} (phase decode) or more"
    return f"record with -n {n} or more"


def decode_weights(trace: Trace, grid: DecodeGrid) -> np.ndarray:
    """Read the final weights of `grid`, the first tokens of `trace`: float32 [T, L, k], NaN if unknown."""
    weights = decode_rows(trace, ["weights"])["weights"]
    return weights[: grid.n_tokens * grid.n_layers].reshape(grid.experts.shape)


def decode_order(trace: Trace) -> np.ndarray:
    """Return the rows of the decode routings token by token, int64 [T * L]; no cut token's."""
    routing = trace.routing(["pass", "step"])
    decode = whole_decode_rows(trace)
    order = by_token(routing["pass"][decode], routing["step"][decode])
    return decode if order is None else decode[order]


def decode_rows(trace: Trace, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Read `columns` of the decode routings of `trace`, one row a routing, token by token."""
    routing, rows = trace.routing(columns), decode_order(trace)
    return {name: routing[name][rows] for name in columns}
