"""The decoded tokens of a trace, block by block, as predictors see them.

In: a trace and the names of columns. Out: blocks of consecutive decoded tokens of one turn, in the
order they ran, in bounded memory. This module knows nothing of what is predicted from them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tracekit.routing.cut import cut_pass
from tracekit.trace.errors import TraceError, UsageError
from tracekit.trace.passes import by_token
from tracekit.trace.schema import DECODE

if TYPE_CHECKING:
    from tracekit.trace import Trace

ROUTING_COLUMNS = ("weights", "logits", "gate_input")
STEP_COLUMNS = ("token", "embedding")
# Tokens of a block: enough rows for a matrix product to run at full speed.
BLOCK_TOKENS = 512
# Scores of a layer in a block: a predictor gives one for each expert, however many a model may have.
BLOCK_SCORES = 1 << 22


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
    kept : bool [T]
        False of a drafted token that was rejected.
    decode_pass : int64 [T]
        The place of each token's pass among all decode passes of the trace.
    previous_row : int64 [T]
        The last token of the turn that stayed and whose pass ended before the pass of each token
        began: its row in the block, or -1 for `before`. Of a pass of one token that is the token
        before; of the tokens that are verified together it is one and the same, since none of them
        is known before the others.
    """

    turn: int
    start: int
    start_in_turn: int
    step: np.ndarray
    experts: np.ndarray
    kept: np.ndarray
    decode_pass: np.ndarray
    previous_row: np.ndarray
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
        """Which tokens follow a decoded token of their turn that is known in time, bool [T]."""
        follows: np.ndarray = (self.previous_row >= 0) | (self.before is not None)
        return follows

    def previous(self, column: str, layer: int) -> np.ndarray:
        """Return a column of the token before each token, [T, …]; zeros where there is none.

        The token before is that of `previous_row`.

        Parameters
        ----------
        column : {"experts", "weights", "logits", "gate_input"}
        layer : int
            Index among the MoE layers.
        """
        values = self.column(column)[:, layer]
        previous: np.ndarray = values[self.previous_row]
        previous[self.previous_row < 0] = (
            0 if self.before is None else self.before.column(column)[:, layer]
        )
        return previous

    def cut(self, start: int, stop: int) -> "Block":
        """Return tokens `start` to `stop` as a block of their own."""
        if (start, stop) == (0, len(self)):
            return self
        previous_row = self.previous_row[start:stop] - start
        # All rows that look before the cut look at one token: they are of the pass that it cuts.
        row = int(self.previous_row[start]) if start < len(self) else -1
        return Block(
            self.turn,
            self.start + start,
            self.start_in_turn + start,
            self.step[start:stop],
            self.experts[start:stop],
            self.kept[start:stop],
            self.decode_pass[start:stop],
            np.maximum(previous_row, -1),
            {name: values[start:stop] for name, values in self.columns.items()},
            before=self._alone(row) if row >= 0 else self.before,
        )

    def _alone(self, row: int) -> "Block":
        """Return the token of `row` as a block of its own, which knows no token before it."""
        one = slice(row, row + 1)
        return Block(
            self.turn,
            self.start + row,
            self.start_in_turn + row,
            self.step[one],
            self.experts[one],
            self.kept[one],
            self.decode_pass[one],
            np.full(1, -1),
            {name: values[one] for name, values in self.columns.items()},
        )

    def last_token(self) -> "Block | None":
        """Return a copy of the last token that stayed, so that the block's memory can be released."""
        rows = np.flatnonzero(self.kept)
        if not len(rows):
            return self.before
        last = self._alone(int(rows[-1]))
        return replace(
            last,
            step=last.step.copy(),
            experts=last.experts.copy(),
            kept=last.kept.copy(),
            decode_pass=last.decode_pass.copy(),
            columns={name: values.copy() for name, values in last.columns.items()},
        )


def decode_blocks(
    trace: "Trace", columns: Sequence[str] = (), tokens: int = BLOCK_TOKENS
) -> Iterator[Block]:
    """Iterate over the decoded tokens of `trace`, in bounded memory.

    Parameters
    ----------
    trace : Trace
    columns : sequence of str
        What to read besides the experts, of `ROUTING_COLUMNS` and `STEP_COLUMNS`.
    tokens : int
        The most tokens in a block; fewer of a model with tens of thousands of experts.

    Raises
    ------
    TraceError
        A column is missing or damaged, or the steps do not match the routings.
    """
    n_layers = len(trace.moe_layers)
    tokens = min(tokens, max(1, BLOCK_SCORES // trace.n_expert))
    of_routing = [c for c in columns if c in ROUTING_COLUMNS]
    steps = _Steps(trace, [c for c in columns if c in STEP_COLUMNS])
    kept = trace.kept[trace.steps(["phase"])["phase"] == DECODE]
    start, start_in_turn, n_passes = 0, 0, 0
    turn: int | None = None
    before: Block | None = None
    cut = cut_pass(trace)
    for rows in trace.iter_routing(["turn", "pass", "step", "experts", *of_routing], phase=DECODE):
        if cut is not None and rows["pass"][-1] == cut:
            whole = int(np.searchsorted(rows["pass"], cut))
            rows = {name: values[:whole] for name, values in rows.items()}
            if not whole:
                return
        order = by_token(rows["pass"], rows["step"])
        # A decoded token has every MoE layer, in order: its rows form a grid.
        grid = {
            name: (v if order is None else v[order]).reshape(-1, n_layers, *v.shape[1:])
            for name, v in rows.items()
        }
        turns = grid.pop("turn")[:, 0]
        step = grid.pop("step")[:, 0]
        passes = grid.pop("pass")[:, 0]
        decode_pass = n_passes + np.cumsum(np.diff(passes, prepend=passes[:1]) != 0)
        n_passes = int(decode_pass[-1]) + 1
        edges = (np.flatnonzero(np.diff(turns)) + 1).tolist()
        for first, last in zip([0, *edges], [*edges, len(turns)], strict=True):
            this_turn = int(turns[first])
            if this_turn != turn:
                turn, start_in_turn, before = this_turn, 0, None
            for a, b in _between_passes(passes, first, last, tokens):
                part = {name: values[a:b] for name, values in grid.items()}
                part |= steps.read(start, this_turn, step[a:b])
                experts = part.pop("experts")
                stayed = kept[start : start + b - a]
                previous_row = _previous_rows(passes[a:b], stayed)
                block = Block(
                    this_turn,
                    start,
                    start_in_turn,
                    step[a:b],
                    experts,
                    stayed,
                    decode_pass[a:b],
                    previous_row,
                    part,
                    before,
                )
                yield block
                start += len(block)
                start_in_turn += len(block)
                before = block.last_token()


def _between_passes(
    passes: np.ndarray, first: int, last: int, tokens: int
) -> Iterator[tuple[int, int]]:
    """Cut tokens `first` to `last` into stretches of about `tokens` tokens, never inside a pass."""
    while first < last:
        end = min(first + tokens, last)
        if end < last:
            end = int(np.searchsorted(passes[:last], passes[end - 1], side="right"))
        yield first, end
        first = end


def _previous_rows(passes: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return for each token the last row that stayed of the passes before its own, or -1."""
    rows = np.arange(len(passes))
    last_kept = np.maximum.accumulate(np.where(kept, rows, -1))
    start = np.searchsorted(passes, passes, side="left")
    return np.where(start > 0, last_kept[start - 1], -1)


class _Steps:
    """Columns of ``steps.parquet`` for the decoded tokens of a trace, in their order."""

    def __init__(self, trace: "Trace", columns: Sequence[str]):
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
