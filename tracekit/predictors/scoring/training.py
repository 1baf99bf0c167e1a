"""Who is learned from whom: folds of turns, and predictors made ready for the turn they score."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tracekit.predictors.base import FitReport, LearnedPredictor, Predictor
from tracekit.predictors.scoring.blocks import (
    ROUTING_COLUMNS,
    STEP_COLUMNS,
    Block,
    decode_blocks,
)
from tracekit.predictors.scoring.tally import Tally
from tracekit.trace import Trace
from tracekit.trace.errors import TraceError
from tracekit.trace.schema import DECODE

# Learning needs rows left over when a fold is held out: of a single turn the first half is cut
# into so many folds.
FOLDS_OF_ONE_TURN = 4


@dataclass(eq=False)
class Entry:
    """One predictor at one horizon, and what came of it.

    Attributes
    ----------
    predictor : Predictor
    horizon : int or None
        None of a predictor without one.
    tally : Tally or None
        What scoring counts; None where nothing is scored.
    rows, seconds : int, float
        Tokens learned from, and the time it took.
    fold_of_turn : dict of int to int
        Of a learned predictor.
    held_out : int or None
        The fold that is held out just now.
    ready : bool
        It learned without holding out.
    """

    predictor: Predictor
    horizon: int | None
    tally: Tally | None = None
    rows: int = 0
    seconds: float = 0.0
    fold_of_turn: dict[int, int] = field(default_factory=dict)
    held_out: int | None = None
    ready: bool = False

    @property
    def fit(self) -> FitReport | None:
        """What the predictor's fit cost; None of one that learns nothing."""
        if not isinstance(self.predictor, LearnedPredictor):
            return None
        return FitReport(self.rows, self.predictor.size_bytes, self.seconds, self.predictor.notes)


@dataclass(frozen=True, eq=False)
class DecodedTurns:
    """The turns of a trace that decoded something: their numbers [N] and lengths in tokens [N]."""

    turn: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, trace: Trace) -> "DecodedTurns":
        """Count the decoded tokens of each turn.

        Raises
        ------
        TraceError
            There are none.
        """
        rows = trace.routing(["turn", "phase"])
        decode = rows["turn"][rows["phase"] == DECODE]
        turn, n_rows = np.unique(decode, return_counts=True)
        if not len(turn):
            raise TraceError(
                f"{trace.name} holds no decoded token, and in a prefill every routing is known at "
                "once; record with -n 1 or more."
            )
        return cls(turn, n_rows // len(trace.moe_layers))


class Training:
    """Where learned predictors learn: other turns of the same trace, or another trace.

    Parameters
    ----------
    turns : DecodedTurns
        Of the trace that is scored.
    train : Trace, optional
    """

    def __init__(self, trace: Trace, turns: DecodedTurns, train: Trace | None = None):
        self.source = train or trace
        self.turns = DecodedTurns.of(train) if train else turns
        self.holds_out = train is None and len(turns.turn) > 1
        # Of a single turn the first half trains, and is not scored.
        alone = train is None and not self.holds_out
        self.first_half = max(1, int(turns.tokens[0]) // 2) if alone else 0

    def prepare(self, predictor: LearnedPredictor) -> dict[int, int]:
        """Make room for the folds of `predictor`; return the fold of each turn."""
        if predictor.in_sample:
            predictor.begin(1, holding_out=False)
            return dict.fromkeys(self.turns.turn.tolist(), 0)
        if self.first_half:
            predictor.begin(FOLDS_OF_ONE_TURN, holding_out=False)
            return {}
        n_turns = len(self.turns.turn)
        n_folds = min(n_turns, predictor.fold_limit())
        predictor.begin(n_folds, holding_out=self.holds_out)
        folds = np.arange(n_turns) * n_folds // n_turns
        return dict(zip(self.turns.turn.tolist(), folds.tolist(), strict=True))

    def parts(self, block: Block, entry: Entry) -> Iterator[tuple[Block, int]]:
        """Cut `block` into what `entry` learns from, each part with its fold."""
        if not self.first_half or entry.predictor.in_sample:
            yield block, entry.fold_of_turn[block.turn]
            return
        place = block.start_in_turn + np.arange(len(block))
        fold = place * FOLDS_OF_ONE_TURN // self.first_half
        for f in range(FOLDS_OF_ONE_TURN):
            inside = np.flatnonzero(fold == f)
            if len(inside):
                yield block.cut(int(inside[0]), int(inside[-1]) + 1), f


def learn(entries: Sequence[Entry], training: Training) -> None:
    """Let the learned predictors among `entries` learn."""
    learners = [e for e in entries if isinstance(e.predictor, LearnedPredictor)]
    for entry in learners:
        entry.fold_of_turn = training.prepare(entry.predictor)
    columns = needed_columns([e.predictor for e in learners])
    for reading in range(max((e.predictor.readings for e in learners), default=0)):
        readers = [e for e in learners if reading < e.predictor.readings]
        for block in decode_blocks(training.source, columns):
            for entry in readers:
                start = time.perf_counter()
                for part, fold in training.parts(block, entry):
                    entry.predictor.learn(part, fold, reading)
                    entry.rows += len(part) if reading == 0 else 0
                entry.seconds += time.perf_counter() - start
    for entry in learners:
        if not training.holds_out or entry.predictor.in_sample:
            entry.predictor.hold_out(None)
            entry.ready = True


def hold_out_turn(entry: Entry, block: Block) -> None:
    """Make a learned predictor ready for the turn of `block`, which it must not have seen."""
    if not isinstance(entry.predictor, LearnedPredictor) or entry.ready:
        return
    fold = entry.fold_of_turn[block.turn]
    if fold != entry.held_out:
        entry.predictor.hold_out(fold)
        entry.held_out = fold


def unseen_part(entry: Entry, block: Block, training: Training) -> Block | None:
    """Return what of `block` the entry's predictor has not trained on."""
    learns = isinstance(entry.predictor, LearnedPredictor) and not entry.predictor.in_sample
    seen = max(training.first_half - block.start_in_turn, 0) if learns else 0
    return block.cut(seen, len(block)) if seen < len(block) else None


def needed_columns(predictors: Sequence[Predictor], *optional: str) -> list[str]:
    """Return the columns of routings and steps that `predictors` read, and `optional` ones."""
    wanted = {*optional, *(column for p in predictors for column in p.needs)}
    return [c for c in (*ROUTING_COLUMNS, *STEP_COLUMNS) if c in wanted]
