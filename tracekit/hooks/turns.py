"""From evaluations of a batch to the passes of a trace, whose turns follow each other.

In: evaluations, each of one or more sequences. Out: passes of one sequence each. The sequences of a
batch run side by side, and a trace has one turn after the other: the passes of the first sequence go to
the trace at once, those of the others wait in temporary files until the batch ends.
"""

import pickle
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from tracekit.hooks.forward import Forward
from tracekit.trace import TracekitError
from tracekit.trace.columns import NULLS
from tracekit.trace.schema import DECODE, PREFILL

Columns = dict[str, Any]
# Takes the columns of the routings and of the steps of a pass; `turn` and `pass` are added to them.
Write = Callable[[Columns, Columns], None]


@dataclass
class _Sequence:
    """A sequence of the running batch."""

    position: int = 0  # tokens so far, without padding
    has_begun: bool = False
    decodes: bool = False
    ended: bool = False
    waiting: IO[bytes] | None = None


class Turns:
    """Splits evaluations into passes.

    Parameters
    ----------
    write : callable
        Writes a pass.

    Attributes
    ----------
    n_turns : int
        Turns that have begun.
    """

    def __init__(self, write: Write):
        self.n_turns = 0
        self._write = write
        self._batch: list[_Sequence] = []
        self._files = ExitStack()
        self._n_passes = 0
        self._first_turn = 0
        self._began: float | None = None

    def add(self, forward: Forward) -> None:
        """Take an evaluation.

        Raises
        ------
        TracekitError
            It has another number of sequences than the one before it, which it goes on.
        """
        if self._began is None:
            self._began = forward.start_s
        if self._begins(forward):
            self.end_batch()
            self._first_turn, self.n_turns = self.n_turns, self.n_turns + forward.n_sequences
            self._batch = [_Sequence() for _ in range(forward.n_sequences)]
        if len(self._batch) != forward.n_sequences:
            raise TracekitError(
                f"The model went on with {forward.n_sequences} sequences after {len(self._batch)}; "
                "a recording follows each sequence: run without beams, and each batch to its end."
            )
        for at, sequence in enumerate(self._batch):
            made = self._pass(forward, at, sequence)
            if made is None:
                continue
            if at == 0:
                self._number(self._first_turn, *made)
            else:
                if sequence.waiting is None:
                    sequence.waiting = self._files.enter_context(_temporary())
                pickle.dump(made, sequence.waiting, pickle.HIGHEST_PROTOCOL)

    def end_batch(self) -> None:
        """Write what waits of the sequences after the first."""
        batch, self._batch = self._batch, []
        with self._files:
            for at, sequence in enumerate(batch):
                if sequence.waiting is not None:
                    sequence.waiting.seek(0)
                    for made in _pickled(sequence.waiting):
                        self._number(self._first_turn + at, *made)

    def _begins(self, forward: Forward) -> bool:
        """Say whether an evaluation begins a batch: the first of ``generate``, or without a past."""
        if forward.begins or forward.generates:
            return forward.begins
        if forward.past is None:
            return not self._batch or forward.n_tokens > 1
        return not self._batch or forward.past == 0

    def _number(self, turn: int, routing: Columns, steps: Columns) -> None:
        place = {"turn": turn, "pass": self._n_passes}
        self._write(
            {**routing, **_full(place, len(routing["step"]))},
            {**steps, **_full(place, len(steps["step"]))},
        )
        self._n_passes += 1

    def _pass(
        self, forward: Forward, at: int, sequence: _Sequence
    ) -> tuple[Columns, Columns] | None:
        """Return the columns of the pass of one sequence; None if it has no token in it."""
        n_tokens = forward.n_tokens
        valid = np.ones(n_tokens, np.bool_)
        start = sequence.position if forward.past is None else forward.past
        mask = forward.mask
        if mask is not None:
            valid = mask[at, -n_tokens:]
            start = int(np.count_nonzero(mask[at, :-n_tokens]))
        if sequence.ended or not valid.any():
            return None
        inside = np.flatnonzero(valid)
        tokens = None if forward.tokens is None else forward.tokens[at, inside]
        steps = np.arange(start, start + len(inside), dtype=np.int32)
        goes_on = sequence.has_begun
        sequence.has_begun = True
        sequence.decodes |= goes_on and (forward.generates or len(inside) == 1)
        phase = DECODE if sequence.decodes else PREFILL
        sequence.position = start + len(inside)
        if phase == DECODE and forward.n_sequences > 1 and tokens is not None:
            # Alone it would have stopped before this token; what follows is padding.
            sequence.ended = int(tokens[-1]) in forward.ends_text
            if sequence.ended:
                return None
        return (
            _routing_columns(forward, at * n_tokens + inside, steps, phase),
            _step_columns(forward, tokens, steps, phase, self._began or forward.start_s),
        )


def _routing_columns(forward: Forward, rows: np.ndarray, steps: np.ndarray, phase: int) -> Columns:
    layers = sorted(forward.routed)
    routed = [forward.routed[layer] for layer in layers]
    columns = {
        "phase": np.full(len(rows) * len(layers), phase, np.uint8),
        "step": np.tile(steps, len(layers)),
        "layer": np.repeat(np.array(layers, np.int16), len(rows)),
        "experts": np.concatenate([each.ids[rows] for each in routed]).astype(np.uint16),
        "weights": np.concatenate([each.weights[rows] for each in routed]),
        "logits": np.concatenate([each.logits[rows] for each in routed]),
    }
    gate_inputs = [each.gate_input[rows] for each in routed if each.gate_input is not None]
    if gate_inputs:
        columns["gate_input"] = np.concatenate(gate_inputs)
    return columns


def _step_columns(
    forward: Forward, tokens: np.ndarray | None, steps: np.ndarray, phase: int, began: float
) -> Columns:
    columns: Columns = {"step": steps, "phase": np.full(len(steps), phase, np.uint8)}
    if tokens is not None:
        columns["token"] = tokens.astype(np.int32)
    if forward.n_sequences == 1:  # the time of a batch is of all its sequences
        usage = forward.usage
        costs = {
            "wall_ms": forward.wall_ms,
            "start_s": forward.start_s - began,
            "cpu_ms": None if usage is None else usage.cpu_ms,
            "major_faults": None if usage is None else usage.major_faults,
            "mem_available_bytes": forward.available_bytes,
        }
        for name, value in costs.items():
            if value is not None:
                columns[name] = np.full(len(steps), NULLS[name])
                columns[name][-1] = value
    return columns


def _full(place: dict[str, int], count: int) -> Columns:
    return {name: np.full(count, value, np.int32) for name, value in place.items()}


@contextmanager
def _temporary() -> Iterator[IO[bytes]]:
    with tempfile.TemporaryFile() as file:
        yield file


def _pickled(file: IO[bytes]) -> Iterator[tuple[Columns, Columns]]:
    while True:
        try:
            yield pickle.load(file)  # of this process, from a file without a name
        except EOFError:
            return
