"""Who is learned from whom: folds of turns, and predictors made ready for the turn they score."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from tracekit.predictors.base import FitReport, LearnedPredictor, Predictor
from tracekit.routing.blocks import (
    ROUTING_COLUMNS,
    STEP_COLUMNS,
    Block,
    decode_blocks,
)
from tracekit.routing.turns import DecodedTurns
from tracekit.scoring.tally import Tally
from tracekit.trace import Trace


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
    folds : Folds or None
        Of a learned predictor.
    held_out : frozenset of int or None
        The folds that are held out just now; None before the first are.
    """

    predictor: Predictor
    horizon: int | None
    tally: Tally | None = None
    rows: int = 0
    seconds: float = 0.0
    folds: "Folds | None" = None
    held_out: frozenset[int] | None = None

    @property
    def fit(self) -> FitReport | None:
        """What the predictor's fit cost; None of one that learns nothing."""
        if not _learns(self.predictor):
            return None
        return FitReport(self.rows, self.predictor.size_bytes, self.seconds, self.predictor.notes)


@dataclass(frozen=True, eq=False)
class Folds:
    """How the tokens that a predictor learns from are dealt into folds.

    Consecutive turns make a group, and the tokens of each turn of it are cut into `pieces`, a fold
    each, so that a fit can always be judged on a fold that it has not seen.

    Attributes
    ----------
    group : dict of int to int
        Of each turn.
    tokens : dict of int to int
        How many tokens of each turn are learned from: its first ones.
    n_groups, pieces : int
    holds_out : bool
        A turn is scored with its group held out; otherwise nothing is.
    """

    group: dict[int, int]
    tokens: dict[int, int]
    n_groups: int
    pieces: int
    holds_out: bool

    @property
    def held_out(self) -> list[frozenset[int]]:
        """The sets of folds that will be held out, one after the other."""
        if not self.holds_out:
            return [frozenset()]
        return [self._of_group(group) for group in range(self.n_groups)]

    def held_out_for(self, turn: int) -> frozenset[int]:
        """Return the folds to hold out while `turn` is scored."""
        return self._of_group(self.group[turn]) if self.holds_out else frozenset()

    def _of_group(self, group: int) -> frozenset[int]:
        return frozenset(range(group * self.pieces, (group + 1) * self.pieces))

    def parts(self, block: Block) -> Iterator[tuple[Block, int]]:
        """Cut `block` by folds; yield each part that is learned from, and its fold."""
        place = block.start_in_turn + np.arange(len(block))
        tokens = self.tokens[block.turn]
        piece = place[place < tokens] * self.pieces // tokens
        for p in np.unique(piece).tolist():
            inside = np.flatnonzero(piece == p)
            part = block.cut(int(inside[0]), int(inside[-1]) + 1)
            yield part, self.group[block.turn] * self.pieces + p


class Training:
    """Where learned predictors learn: other turns of the same trace, or another trace.

    Parameters
    ----------
    trace : Trace
        What is scored.
    turns : DecodedTurns
        Of `trace`.
    train : Trace, optional
    """

    def __init__(self, trace: Trace, turns: DecodedTurns, train: Trace | None = None):
        self.source = train or trace
        self._turns = DecodedTurns.of(train) if train else turns
        self._holds_out = train is None and len(turns.turn) > 1
        # Of a single turn the first half trains, and is not scored.
        alone = train is None and not self._holds_out
        self.first_half = max(1, int(turns.tokens[0]) // 2) if alone else 0

    def folds(self, predictor: LearnedPredictor) -> Folds:
        """Deal the turns into as many folds as `predictor` has room for."""
        turns = self._turns.turn.tolist()
        tokens = dict(zip(turns, self._turns.tokens.tolist(), strict=True))
        if predictor.in_sample:
            return Folds(dict.fromkeys(turns, 0), tokens, 1, 1, holds_out=False)
        if self.first_half:
            tokens = {turns[0]: self.first_half}
        n_groups = min(len(turns), predictor.fold_limit())
        group = {turn: i * n_groups // len(turns) for i, turn in enumerate(turns)}
        pieces = {1: 4, 2: 2}.get(n_groups, 1)
        return Folds(group, tokens, n_groups, pieces, self._holds_out)


def _learns(predictor: Predictor) -> bool:
    return isinstance(predictor, LearnedPredictor) and predictor.readings > 0


def learn(entries: Sequence[Entry], training: Training, jobs: int = 1) -> None:
    """Let the learned predictors among `entries` learn, side by side on `jobs` threads."""
    learners = [e for e in entries if _learns(e.predictor)]
    for entry in learners:
        entry.folds = training.folds(entry.predictor)
        entry.predictor.begin(entry.folds.n_groups * entry.folds.pieces, entry.folds.held_out)
    columns = needed_columns([e.predictor for e in learners])
    for reading in range(max((e.predictor.readings for e in learners), default=0)):
        readers = [e for e in learners if reading < e.predictor.readings]
        with ThreadPoolExecutor(jobs) as pool:
            for block in decode_blocks(training.source, columns):
                work = [pool.submit(_learn_block, e, block, reading) for e in readers]
                for done in work:
                    done.result()


def _learn_block(entry: Entry, block: Block, reading: int) -> None:
    start = time.perf_counter()
    for part, fold in entry.folds.parts(block):
        entry.predictor.learn(part, fold, reading)
        entry.rows += len(part) if reading == 0 else 0
    entry.seconds += time.perf_counter() - start


def hold_out_turn(entry: Entry, block: Block) -> None:
    """Make a learned predictor ready for the turn of `block`, which it must not have seen."""
    if not _learns(entry.predictor):
        return
    folds = entry.folds.held_out_for(block.turn)
    if folds != entry.held_out:
        start = time.perf_counter()
        entry.predictor.hold_out(folds)
        entry.held_out = folds
        entry.seconds += time.perf_counter() - start


def unseen_part(entry: Entry, block: Block, training: Training) -> Block | None:
    """Return what of `block` the entry's predictor has not trained on."""
    held_out = _learns(entry.predictor) and not entry.predictor.in_sample
    seen = max(training.first_half - block.start_in_turn, 0) if held_out else 0
    return block.cut(seen, len(block)) if seen < len(block) else None


def needed_columns(predictors: Sequence[Predictor], *optional: str) -> list[str]:
    """Return the columns of routings and steps that `predictors` read, and `optional` ones."""
    wanted = {*optional, *(column for p in predictors for column in p.needs)}
    return [c for c in (*ROUTING_COLUMNS, *STEP_COLUMNS) if c in wanted]
