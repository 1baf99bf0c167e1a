"""The decoded tokens of a trace, block by block, as predictors see them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.trace import Trace
from tracekit.trace.errors import TraceError
from tracekit.trace.schema import DECODE

ROUTING_COLUMNS = ("weights", "logits", "gate_input")
STEP_COLUMNS = ("token", "embedding")
# Tokens of a block: enough rows for a matrix product to run at full speed.
BLOCK_TOKENS = 512


@dataclass(frozen=True, eq=False)
class Block:
    """T consecutive decoded tokens of one turn, each with all L MoE layers.

    Columns that no predictor asked for are None.

    Attributes
    ----------
    turn : int
    start : int
        The place of the first token among all decoded tokens of the trace.
    start_in_turn : int
        The same among those of its turn.
    step : int32 [T]
        Absolute context position of each token.
    experts : uint16 [T, L, k]
        Selected experts in slot order.
    weights : float32 [T, L, k] or None
        Final routing weights, NaN where unknown.
    logits : float32 [T, L, n_expert] or None
    gate_input : float32 [T, L, n_embd] or None
    token : int32 [T] or None
    embedding : float32 [T, n_embd] or None
    before : Block or None
        The last token of the turn before this block (T = 1); None at the turn's start.
    """

    turn: int
    start: int
    start_in_turn: int
    step: np.ndarray
    experts: np.ndarray
    weights: np.ndarray | None = None
    logits: np.ndarray | None = None
    gate_input: np.ndarray | None = None
    token: np.ndarray | None = None
    embedding: np.ndarray | None = None
    before: "Block | None" = None

    def __len__(self) -> int:
        return len(self.step)

    @property
    def has_previous(self) -> np.ndarray:
        """Which tokens follow another decoded token of their turn, bool [T]."""
        follows = np.ones(len(self), bool)
        follows[:1] = self.before is not None
        return follows

    def previous(self, column: str, layer: int) -> np.ndarray:
        """Return a column of the token before each token, [T, …]; row 0 is zeros at a turn's start.

        Parameters
        ----------
        column : {"experts", "weights", "logits", "gate_input"}
        layer : int
            Index among the MoE layers.
        """
        values = getattr(self, column)[:, layer]
        shifted = np.empty_like(values)
        shifted[1:] = values[:-1]
        shifted[:1] = 0 if self.before is None else getattr(self.before, column)[:, layer]
        return shifted

    def cut(self, start: int, stop: int) -> "Block":
        """Return tokens `start` to `stop` as a block of their own."""
        if (start, stop) == (0, len(self)):
            return self
        own = {name: getattr(self, name) for name in ("step", "experts", *_COLUMNS)}
        return Block(
            self.turn,
            self.start + start,
            self.start_in_turn + start,
            before=self.cut(start - 1, start) if start else self.before,
            **{
                name: None if values is None else values[start:stop] for name, values in own.items()
            },
        )


_COLUMNS = ROUTING_COLUMNS + STEP_COLUMNS


def decode_blocks(
    trace: Trace, columns: Sequence[str] = (), tokens: int = BLOCK_TOKENS
) -> Iterator[Block]:
    """Iterate over the decoded tokens of `trace`, in bounded memory.

    Parameters
    ----------
    trace : Trace
    columns : sequence of str
        What to read besides the experts, of `ROUTING_COLUMNS` and `STEP_COLUMNS`.
    tokens : int
        The most tokens in a block.

    Raises
    ------
    TraceError
        A column is missing or damaged, or the steps do not match the routings.
    """
    n_layers = len(trace.moe_layers)
    of_routing = [c for c in columns if c in ROUTING_COLUMNS]
    steps = _Steps(trace, [c for c in columns if c in STEP_COLUMNS])
    start, turn, in_turn, before = 0, None, 0, None
    for rows in trace.iter_routing(["turn", "step", "experts", *of_routing], phase=DECODE):
        # A decoded token has every MoE layer, in order: its rows form a grid.
        grid = {name: v.reshape(-1, n_layers, *v.shape[1:]) for name, v in rows.items()}
        turns = grid.pop("turn")[:, 0]
        step = grid.pop("step")[:, 0]
        edges = np.flatnonzero(np.diff(turns)) + 1
        for first, last in zip([0, *edges], [*edges, len(turns)], strict=True):
            if turns[first] != turn:
                turn, in_turn, before = int(turns[first]), 0, None
            for a in range(first, last, tokens):
                b = min(a + tokens, last)
                part = {name: values[a:b] for name, values in grid.items()}
                part |= steps.read(start, turn, step[a:b])
                block = Block(turn, start, in_turn, step[a:b], before=before, **part)
                yield block
                start += len(block)
                in_turn += len(block)
                before = _last(block)


def _last(block: Block) -> Block:
    """Return a copy of the last token, so that the block's memory can go."""
    last = {
        name: None if getattr(block, name) is None else getattr(block, name)[-1:].copy()
        for name in ("step", "experts", *_COLUMNS)
    }
    return Block(
        block.turn, block.start + len(block) - 1, block.start_in_turn + len(block) - 1, **last
    )


class _Steps:
    """Columns of ``steps.parquet`` for the decoded tokens of a trace, in their order."""

    def __init__(self, trace: Trace, columns: Sequence[str]):
        self._trace = trace
        self._columns = columns
        if columns:
            place = trace.steps(["turn", "step", "phase"])
            self._rows = np.flatnonzero(place["phase"] == DECODE)
            self._place = place

    def read(self, start: int, turn: int, step: np.ndarray) -> dict[str, np.ndarray]:
        if not self._columns:
            return {}
        rows = self._rows[start : start + len(step)]
        same = np.array_equal(self._place["step"][rows], step)
        if not same or (self._place["turn"][rows] != turn).any():
            raise TraceError(
                f"The steps of {self._trace.name} do not match its routings in turn {turn} near "
                f"step {step[0]}: there must be one row for each decoded token, in order."
            )
        return self._trace.steps(self._columns, int(rows[0]), int(rows[-1]) + 1)
