"""The decoded tokens of a trace, block by block, as predictors see them.

In: a trace and the names of columns. Out: blocks of consecutive decoded tokens of one turn, in the
order they ran, in bounded memory. This module knows nothing of what is predicted from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracekit.trace import Trace
from tracekit.trace.errors import TraceError, UsageError
from tracekit.trace.schema import DECODE

ROUTING_COLUMNS = ("weights", "logits", "gate_input")
STEP_COLUMNS = ("token", "embedding")
# Tokens of a block: enough rows for a matrix product to run at full speed.
BLOCK_TOKENS = 512


@dataclass(frozen=True, eq=False)
class Block:
    """T consecutive decoded tokens of one turn, each with all L MoE layers.

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
    columns : mapping of str to array
        The columns that were asked for, by name; each is also an attribute of that name.
    before : Block or None
        The last token of the turn before this block (T = 1); None at the turn's start.
    """

    turn: int
    start: int
    start_in_turn: int
    step: np.ndarray
    experts: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    before: "Block | None" = None

    def __len__(self) -> int:
        return len(self.step)

    @property
    def weights(self) -> np.ndarray | None:
        """Final routing weights, float32 [T, L, k], NaN where unknown; None if not asked for."""
        return self.columns.get("weights")

    @property
    def logits(self) -> np.ndarray:
        """Router logits, float32 [T, L, n_expert]."""
        return self.column("logits")

    @property
    def gate_input(self) -> np.ndarray:
        """What the routers multiply, float32 [T, L, n_embd]."""
        return self.column("gate_input")

    @property
    def token(self) -> np.ndarray:
        """Token ids, int32 [T]."""
        return self.column("token")

    @property
    def embedding(self) -> np.ndarray:
        """Token embeddings, float32 [T, n_embd]."""
        return self.column("embedding")

    def column(self, name: str) -> np.ndarray:
        """Return the column `name`: ``experts``, or one that was asked for.

        Raises
        ------
        UsageError
            It was not asked for.
        """
        if name == "experts":
            return self.experts
        if name not in self.columns:
            raise UsageError(
                f"A predictor reads the column {name!r}, which is not among its `needs`; add it "
                "there."
            )
        return self.columns[name]

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
        values = self.column(column)[:, layer]
        shifted = np.empty_like(values)
        shifted[1:] = values[:-1]
        shifted[:1] = 0 if self.before is None else self.before.column(column)[:, layer]
        return shifted

    def cut(self, start: int, stop: int) -> "Block":
        """Return tokens `start` to `stop` as a block of their own."""
        if (start, stop) == (0, len(self)):
            return self
        return Block(
            self.turn,
            self.start + start,
            self.start_in_turn + start,
            self.step[start:stop],
            self.experts[start:stop],
            {name: values[start:stop] for name, values in self.columns.items()},
            before=self.cut(start - 1, start) if start else self.before,
        )

    def last_token(self) -> "Block":
        """Return a copy of the last token, so that the memory of the block can be released."""
        return Block(
            self.turn,
            self.start + len(self) - 1,
            self.start_in_turn + len(self) - 1,
            self.step[-1:].copy(),
            self.experts[-1:].copy(),
            {name: values[-1:].copy() for name, values in self.columns.items()},
        )


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
    start, start_in_turn = 0, 0
    turn: int | None = None
    before: Block | None = None
    for rows in trace.iter_routing(["turn", "step", "experts", *of_routing], phase=DECODE):
        # A decoded token has every MoE layer, in order: its rows form a grid.
        grid = {name: v.reshape(-1, n_layers, *v.shape[1:]) for name, v in rows.items()}
        turns = grid.pop("turn")[:, 0]
        step = grid.pop("step")[:, 0]
        edges = (np.flatnonzero(np.diff(turns)) + 1).tolist()
        for first, last in zip([0, *edges], [*edges, len(turns)], strict=True):
            this_turn = int(turns[first])
            if this_turn != turn:
                turn, start_in_turn, before = this_turn, 0, None
            for a in range(first, last, tokens):
                b = min(a + tokens, last)
                part = {name: values[a:b] for name, values in grid.items()}
                part |= steps.read(start, this_turn, step[a:b])
                experts = part.pop("experts")
                block = Block(this_turn, start, start_in_turn, step[a:b], experts, part, before)
                yield block
                start += len(block)
                start_in_turn += len(block)
                before = block.last_token()


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
        """Return the columns of the tokens from `start` on, which `turn` has at `step` [T]."""
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
