"""Which turns a learned predictor learns from, and which are held out while it is scored.

In: a trace, or another one to learn from, and predictors. Out: predictors that have learned, each
made ready turn by turn so that it has not seen what it is asked about. This module knows nothing of
scores.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from tracekit.predictors import Horizon, LearnedPredictor, OnlinePredictor, Predictor
from tracekit.routing.blocks import BLOCK_TOKENS, Block
from tracekit.routing.turns import DecodedTurns
from tracekit.scoring.online import Path, led_through, let_pass
from tracekit.scoring.usable import columns_to_read
from tracekit.trace import Trace


def silent_overflow() -> np.errstate:
    """Let numpy say nothing of numbers that become too large: a trace may hold any finite ones.

    What comes of them is checked: a score that is not a number is refused.
    """
    return np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore")


@dataclass(frozen=True, eq=False)
class Folds:
    """How the tokens that a predictor learns from are dealt into folds.

    Consecutive turns make a group, and the tokens of each turn of it are cut into `pieces`, a fold
    each, so that a fit can always be judged on a fold that it has not seen.

    Attributes
    ----------
    group : dict of int to int
        The group of each turn.
    tokens : dict of int to int
        How many tokens of each turn are learned from: its first ones.
    n_groups, pieces : int
    holds_out : bool
        A turn is scored with its group held out; otherwise nothing is held out.
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


class Lesson:
    """What one learned predictor is taught, and what is held out of it at the moment.

    Attributes
    ----------
    learner : LearnedPredictor
    folds : Folds
    rows : int
        Decoded tokens it learned from, those of held-out turns counted too.
    seconds : float
        Time spent learning, reading the trace excluded.
    """

    def __init__(self, learner: LearnedPredictor, folds: Folds):
        self.learner = learner
        self.folds = folds
        self.rows = 0
        self.seconds = 0.0
        self._held_out: frozenset[int] | None = None
        learner.begin(folds.n_groups * folds.pieces, folds.held_out)

    def teach(self, block: Block, reading: int) -> None:
        """Let the predictor learn `block` for the `reading`-th time, fold by fold."""
        start = time.perf_counter()
        for part, fold in self.folds.parts(block):
            with silent_overflow():
                self.learner.learn(part, fold, reading)
            self.rows += len(part) if reading == 0 else 0
        self.seconds += time.perf_counter() - start

    def hold_out(self, turn: int) -> None:
        """Make the predictor ready for `turn`, as if it had never seen that turn."""
        folds = self.folds.held_out_for(turn)
        if folds == self._held_out:
            return
        start = time.perf_counter()
        with silent_overflow():
            self.learner.hold_out(folds)
        self._held_out = folds
        self.seconds += time.perf_counter() - start


@dataclass(eq=False)
class Entry:
    """One predictor at one horizon.

    Attributes
    ----------
    predictor : Predictor
    horizon : int, "token" or None
        None for a predictor without one.
    lesson : Lesson or None
        None for a predictor that learns nothing on other turns.
    path : Path or None
        None for a predictor that learns nothing while the run goes on.
    """

    predictor: Predictor
    horizon: Horizon | None
    lesson: Lesson | None = None
    path: Path | None = field(init=False)

    def __post_init__(self) -> None:
        predictor = self.predictor
        self.path = Path(predictor) if isinstance(predictor, OnlinePredictor) else None


def paths_of(entries: Sequence[Entry]) -> list[Path]:
    """Return the paths of the online predictors among `entries`."""
    return [entry.path for entry in entries if entry.path is not None]


class Training:
    """Where learned predictors learn: from other turns of the same trace, or from another trace.

    Parameters
    ----------
    trace : Trace
        What is scored.
    turns : DecodedTurns
        Those of `trace`.
    train : Trace, optional
        What is learned from instead.
    """

    def __init__(self, trace: Trace, turns: DecodedTurns, train: Trace | None = None):
        self._trace, self._train = trace, train
        self._source = train or trace
        self._turns = DecodedTurns.of(train) if train else turns
        self._holds_out = train is None and len(turns.turn) > 1
        # The first half of a single turn trains, and is not scored.
        alone = train is None and not self._holds_out
        self._first_half = max(1, int(turns.tokens[0]) // 2) if alone else 0

    def teach(
        self, entries: Sequence[Entry], jobs: int = 1, block_tokens: int = BLOCK_TOKENS
    ) -> None:
        """Let the learned predictors among `entries` learn, side by side on `jobs` threads."""
        for entry in entries:
            learner = entry.predictor
            if isinstance(learner, LearnedPredictor) and learner.readings > 0:
                entry.lesson = Lesson(learner, self._folds(learner))
        lessons = [entry.lesson for entry in entries if entry.lesson is not None]
        columns = columns_to_read([lesson.learner for lesson in lessons])
        for reading in range(max((lesson.learner.readings for lesson in lessons), default=0)):
            reading_on = [e for e in entries if e.lesson and reading < e.lesson.learner.readings]
            readers = [entry.lesson for entry in reading_on if entry.lesson]
            paths = paths_of(reading_on)
            for path in paths:
                path.forget()
            with ThreadPoolExecutor(jobs) as pool:
                for block in led_through(self._source, paths, columns, block_tokens):
                    work = [pool.submit(lesson.teach, block, reading) for lesson in readers]
                    for done in work:
                        done.result()

    def blocks(
        self, entries: Sequence[Entry], columns: Sequence[str], block_tokens: int = BLOCK_TOKENS
    ) -> Iterator[Block]:
        """Iterate over the decoded tokens to score; online predictors have seen all before each."""
        paths = paths_of(entries)
        for path in paths:
            path.forget()
        if self._train is not None:
            let_pass(self._train, paths, block_tokens)
        return led_through(self._trace, paths, columns, block_tokens)

    def unseen(self, entry: Entry, block: Block) -> Block | None:
        """Return the tokens of `block` that the entry's predictor has not trained on, if any.

        The predictor is made ready for them: their turn is held out.
        """
        lesson = entry.lesson
        if lesson is None:
            return block
        seen = 0
        if not lesson.learner.in_sample:
            seen = max(self._first_half - block.start_in_turn, 0)
        if seen >= len(block):
            return None
        lesson.hold_out(block.turn)
        return block.cut(seen, len(block))

    def _folds(self, predictor: LearnedPredictor) -> Folds:
        """Deal the turns into as many folds as `predictor` has room for."""
        turns = self._turns.turn.tolist()
        tokens = dict(zip(turns, self._turns.tokens.tolist(), strict=True))
        if predictor.in_sample:
            return Folds(dict.fromkeys(turns, 0), tokens, 1, 1, holds_out=False)
        if self._first_half:
            tokens = {turns[0]: self._first_half}
        n_groups = min(len(turns), predictor.fold_limit())
        group = {turn: i * n_groups // len(turns) for i, turn in enumerate(turns)}
        pieces = {1: 4, 2: 2}.get(n_groups, 1)
        return Folds(group, tokens, n_groups, pieces, self._holds_out)
