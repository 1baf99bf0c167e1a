"""Routings in the order in which an engine computed them: which pass, turn and token each is of.

In: layers and experts in the order of the graph, and which rows one call of a layer gave. Out: chunks of
whole passes. An engine computes layer by layer, so a pass ends where the layer does not go on; where a
layer has several rows, the pass has several tokens.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tracekit.formats.grouping import LineOf
from tracekit.formats.rows import GATHERED_SLOTS
from tracekit.formats.source import Source
from tracekit.trace.chunks import Routings
from tracekit.trace.schema import DECODE, PREFILL

OF_PASSES = "a pass ends where the layer falls back"
OF_PHASES = "passes of several tokens are prompts, and one after a decoded token begins a new turn"


@dataclass(frozen=True)
class Computed:
    """Some rows of a file, in the order of the graph.

    Attributes
    ----------
    layer : int [n]
    experts : int [n, k]
    call : int [n]
        A label of the call of the layer that gave a row: it changes where a new call begins.
    number : int [n]
        Where a row is in the file: what `LineOf` maps to words.
    weights : float [n, k] or None
    prompt : bool [n] or None
        Whether a row is of a prompt, where the file says that.
    n_tokens : int [n] or None
        Tokens of the call, where rows stand for calls. Passes of several tokens are left out then:
        nobody knows which token selected which expert.
    """

    layer: np.ndarray
    experts: np.ndarray
    call: np.ndarray
    number: np.ndarray
    weights: np.ndarray | None = None
    prompt: np.ndarray | None = None
    n_tokens: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.layer)

    def taken(self, rows: slice) -> "Computed":
        """Return some rows that follow each other."""
        return Computed(**{name: values[rows] for name, values in self._columns().items()})

    @classmethod
    def joined(cls, pieces: list["Computed"]) -> "Computed":
        """Return several pieces as one."""
        if len(pieces) == 1:
            return pieces[0]
        columns = [piece._columns() for piece in pieces]
        return cls(**{n: np.concatenate([each[n] for each in columns]) for n in columns[0]})

    def _columns(self) -> dict[str, np.ndarray]:
        return {name: values for name, values in vars(self).items() if values is not None}


@dataclass(frozen=True)
class Runs:
    """Rows of whole passes, as runs of one layer.

    Attributes
    ----------
    pass_of_row : int [n]
    from_end : int [n]
        Rows of its run from this one to the last, this one included.
    n_tokens : int [P]
        Of each pass: the longest of its runs.
    n_runs : int [P]
    """

    pass_of_row: np.ndarray
    from_end: np.ndarray
    n_tokens: np.ndarray
    n_runs: np.ndarray

    @classmethod
    def of(cls, layer: np.ndarray, begins: np.ndarray) -> "Runs":
        """Find the runs of rows that are in passes which begin at `begins`, bool [n]."""
        run_begins = begins.copy()
        run_begins[1:] |= np.diff(layer) != 0
        run_start = np.flatnonzero(run_begins)
        run_count = np.diff(np.append(run_start, len(layer)))
        first_run = np.flatnonzero(begins[run_start])
        run_of_row = np.cumsum(run_begins) - 1
        return cls(
            pass_of_row=np.cumsum(begins) - 1,
            from_end=run_count[run_of_row] - (np.arange(len(layer)) - run_start[run_of_row]),
            n_tokens=np.maximum.reduceat(run_count, first_run),
            n_runs=np.diff(np.append(first_run, len(run_start))),
        )


@dataclass
class PassOrder:
    """The turn and the token at which passes that follow go on."""

    _turn: int = 0
    _step: int = 0
    _was_decoding: bool = False

    def places(self, n_tokens: np.ndarray, decode: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return turn and first step of each of the passes that follow, int [P].

        Parameters
        ----------
        n_tokens : int [P]
        decode : bool [P]
            A pass of a prompt after one that decodes begins a new turn.
        """
        begins = ~decode & np.append(self._was_decoding, decode[:-1])
        turn = self._turn + np.cumsum(begins)
        before = np.cumsum(n_tokens) - n_tokens
        start = np.maximum.accumulate(np.where(begins, before, -self._step))
        self._turn, self._was_decoding = int(turn[-1]), bool(decode[-1])
        self._step = int(before[-1] + n_tokens[-1] - start[-1])
        return turn, before - start


@dataclass
class PassReader:
    """Makes routings of rows in the order of the graph.

    Parameters
    ----------
    source : Source
        Of which the rows are; it is told what is inferred, and that the file ends early.
    line_of : callable
        Maps `Computed.number` to the words that tell a user where a row is.

    Attributes
    ----------
    n_left_out : int
        Passes of several tokens that were left out.
    """

    source: Source
    line_of: LineOf
    n_left_out: int = 0
    _order: PassOrder = field(default_factory=PassOrder)
    _n_passes: int = 0
    _layers: list[int] = field(default_factory=list)  # of the pass that has the most

    def chunks(self, pieces: Iterable[Computed]) -> Iterator[Routings]:
        """Yield the routings of all rows; the last pass is left out if it lacks layers."""
        self.source.inferred.setdefault("passes", OF_PASSES)
        waiting: list[Computed] = []
        n_slots, most = 0, GATHERED_SLOTS
        for piece in pieces:
            if not len(piece):
                continue
            waiting.append(piece)
            n_slots += piece.experts.size
            if n_slots < most:
                continue
            rows = Computed.joined(waiting)
            begins = _begins(rows)
            end = int(np.flatnonzero(begins)[-1])
            if end:
                yield self._routings(rows.taken(slice(0, end)), begins[:end])
                rows = rows.taken(slice(end, None))
            waiting, n_slots = [rows], rows.experts.size
            most = max(GATHERED_SLOTS, 2 * n_slots)
        if waiting:
            rows = self._without_cut_call(Computed.joined(waiting))
            begins = _begins(rows)
            end = self._without_cut_pass(rows, begins)
            if end:
                yield self._routings(rows.taken(slice(0, end)), begins[:end])

    def _routings(self, rows: Computed, begins: np.ndarray) -> Routings:
        runs = Runs.of(rows.layer, begins)
        n_tokens, of_row = runs.n_tokens, runs.pass_of_row
        if rows.n_tokens is not None:
            n_tokens = np.maximum.reduceat(rows.n_tokens, np.flatnonzero(begins))
        if rows.prompt is None:
            self.source.inferred.setdefault("phases", OF_PHASES)
            decode: np.ndarray = n_tokens == 1
        else:
            decode = ~rows.prompt[begins]
        turn, first_step = self._order.places(n_tokens, decode)
        self._note_layers(rows.layer, begins, runs.n_runs)
        passes = of_row + self._n_passes
        self._n_passes += len(n_tokens)
        # Where a layer has fewer tokens than others, as the last one often does, it has the last.
        step = (first_step + n_tokens)[of_row] - runs.from_end
        line_of, number = self.line_of, rows.number
        routings = Routings(
            turn=turn[of_row],
            passes=passes,
            phase=np.where(decode, DECODE, PREFILL)[of_row],
            step=step,
            layer=rows.layer,
            experts=rows.experts,
            weights=rows.weights,
            locate=lambda row, slot: line_of(int(number[row])),
        )
        if rows.n_tokens is None or decode.all():
            return routings
        self.n_left_out += int(np.count_nonzero(~decode))
        taken = np.flatnonzero(decode[of_row])
        given = vars(routings).items()
        columns: dict[str, Any] = {n: v[taken] for n, v in given if isinstance(v, np.ndarray)}
        return Routings(**columns, locate=lambda row, slot: line_of(int(number[taken[row]])))

    def _note_layers(self, layer: np.ndarray, begins: np.ndarray, n_runs: np.ndarray) -> None:
        longest = int(n_runs.argmax())
        if n_runs[longest] > len(self._layers):
            start, stop = np.append(np.flatnonzero(begins), len(layer))[longest : longest + 2]
            self._layers = np.unique(layer[start:stop]).tolist()

    def _without_cut_call(self, rows: Computed) -> Computed:
        """Leave out the last call of several rows where the file is cut: its next row is lost."""
        if self.source.complete:
            return rows
        differs = np.flatnonzero((np.diff(rows.call) != 0) | (np.diff(rows.layer) != 0))
        last = int(differs[-1]) + 1 if len(differs) else 0
        begins = _begins(rows)
        in_pass = len(rows) - int(np.flatnonzero(begins)[-1])
        is_single = len(rows) - last == 1 and len(np.unique(rows.layer[-in_pass:])) == in_pass
        return rows if is_single or not last else rows.taken(slice(0, last))

    def _without_cut_pass(self, rows: Computed, begins: np.ndarray) -> int:
        """Return where the rows end, without a last pass that stops before its last layers."""
        start = int(np.flatnonzero(begins)[-1])
        layers = np.unique(rows.layer[start:]).tolist()
        if start:
            runs = Runs.of(rows.layer[:start], begins[:start])
            self._note_layers(rows.layer[:start], begins[:start], runs.n_runs)
        if len(layers) >= len(self._layers) or layers != self._layers[: len(layers)]:
            return len(rows)
        self.source.cut(
            f"{self.source.name} is incomplete: its last pass has {len(layers)} of "
            f"{len(self._layers)} layers, and is left out."
        )
        return start


def _begins(rows: Computed) -> np.ndarray:
    """Say which rows begin a pass, bool [n]; the first does."""
    begins = np.ones(len(rows), np.bool_)
    down = np.diff(rows.layer)
    begins[1:] = (down < 0) | ((down == 0) & (np.diff(rows.call) != 0))
    return begins
