"""Another run that is replayed first and counts in no figure: it fills the cache.

In: the batches of two traces of one model. Out: one run of both, which says what counts. Nothing here
knows a policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tracekit.policies.base import Batches, Guesses, Popularity
from tracekit.replaying.batches import build_batches
from tracekit.trace import Trace
from tracekit.trace.errors import TraceError


@dataclass(frozen=True)
class Warm:
    """A trace that is replayed first, and its batches."""

    trace: Trace
    batches: Batches

    @classmethod
    def of(cls, warm: Trace, trace: Trace, batches: Batches) -> "Warm":
        """Read `warm` for a replay of `trace`, whose batches are `batches`.

        Raises
        ------
        TraceError
            It is of another model, or of the same with experts of other sizes; or it lacks a column
            that a policy needs.
        UsageError
            It holds the same routings.
        """
        from tracekit.scoring.usable import check_other  # it loads all predictors

        wrong = "{} cannot fill the cache for {}"
        check_other(trace, warm, wrong, "what it leaves in the cache")
        first = build_batches(warm, batches.weights is not None, batches.bypass, equal_sizes=True)
        both_sized = first.sized and batches.sized
        if both_sized and not np.array_equal(first.expert_bytes, batches.expert_bytes):
            raise TraceError(
                f"{wrong.format(warm.name, trace.name)}: its experts have other sizes; give a trace of "
                "the same model file."
            )
        # Sizes that only one of the two gives are those of both.
        first = replace(first, expert_bytes=batches.expert_bytes, sized=batches.sized)
        return cls(warm, first)

    def learned_on(self, train: Trace | None) -> Trace | None:
        """Return what a predictor learns on here: `train`, unless that is this trace itself."""
        return None if train is None or train.digest == self.trace.digest else train


def warmed_by(warm: Batches, batches: Batches) -> Batches:
    """Return a run that replays `warm` first, without counting it, and then `batches`.

    Sizes of experts are those of `batches`. Turns and passes of `warm` get numbers below 0.

    Parameters
    ----------
    warm, batches : Batches
        Of the same model, and with weights, rows and guesses alike.
    """
    offset = warm.batch_start[-1]
    return replace(
        batches,
        keys=np.concatenate([warm.keys, batches.keys]),
        admit_rank=np.concatenate([warm.admit_rank, batches.admit_rank]),
        batch_start=np.concatenate([warm.batch_start[:-1], batches.batch_start + offset]),
        layer=np.concatenate([warm.layer, batches.layer]),
        turn=np.concatenate([_below_zero(warm.turn), batches.turn]),
        pass_id=np.concatenate([_below_zero(warm.pass_id), batches.pass_id]),
        step=np.concatenate([warm.step, batches.step]),
        phase=np.concatenate([warm.phase, batches.phase]),
        weights=_both(warm.weights, batches.weights),
        guesses=_all_guesses(warm.guesses, batches.guesses),
        popularity=_all_popularity(warm, batches),
        rows=_both(warm.rows, batches.rows),
        row_start=_starts(warm.row_start, batches.row_start),
        warming=np.arange(len(warm) + len(batches)) < len(warm),
        skipped=(
            None
            if batches.skipped is None
            else np.concatenate([np.zeros(len(warm), np.bool_), batches.skipped])
        ),
    )


def _below_zero(numbers: np.ndarray) -> np.ndarray:
    return np.asarray(numbers - numbers.max(initial=-1) - 1)


def _both(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    return None if first is None or second is None else np.concatenate([first, second])


def _starts(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    if first is None or second is None:
        return None
    return np.concatenate([first[:-1], second + first[-1]])


def _all_guesses(first: Guesses | None, second: Guesses | None) -> Guesses | None:
    if first is None or second is None:
        return None
    # Passes of several tokens have more guesses: the narrower of the two is filled up.
    width = max(first.keys.shape[1], second.keys.shape[1])
    weights = None
    if first.weights is not None and second.weights is not None:
        weights = _stacked([first.weights, second.weights], width, np.nan)
    return Guesses(_stacked([first.keys, second.keys], width, -1), weights)


def _all_popularity(warm: Batches, batches: Batches) -> Popularity | None:
    """Return what was popular for each turn of both."""
    if warm.popularity is None or batches.popularity is None:
        return None
    turns = [np.unique(part.turn) for part in (warm, batches)]
    counts = [
        part.popularity.counts[part.popularity.row_of(of_part)]
        for part, of_part in zip((warm, batches), turns, strict=True)
        if part.popularity is not None
    ]
    return Popularity(
        np.concatenate(counts), np.concatenate([turns[0] - warm.turn.max() - 1, turns[1]])
    )


def _stacked(parts: Sequence[np.ndarray], width: int, fill: float) -> np.ndarray:
    return np.concatenate(
        [np.pad(part, ((0, 0), (0, width - part.shape[1])), constant_values=fill) for part in parts]
    )
