"""What a predictor has in hand after each batch of a run, for the policies that act on it.

In: a trace, its batches, and the name of a predictor. Out: predicted keys and weights by batch. This
module knows nothing of what a policy does with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tracekit.params import make_params
from tracekit.policies.base import Batches, Guesses
from tracekit.predictors import PREDICTORS, Predictor
from tracekit.replaying.threads import on_threads, threads_of
from tracekit.routing.blocks import Block
from tracekit.routing.routers import Routers
from tracekit.routing.turns import DecodedTurns
from tracekit.scoring.ranking import one_blas_thread, rank_layer, unseen_parts
from tracekit.scoring.ranks import name_best
from tracekit.scoring.training import Entry, Training, silent_overflow
from tracekit.scoring.usable import check_horizons, why_unusable
from tracekit.trace import Trace
from tracekit.trace.build import shown
from tracekit.trace.errors import MissingDataError, UsageError
from tracekit.trace.schema import DECODE


class Source(Protocol):
    """Parameters of a policy that acts on a predictor's guesses."""

    @property
    def predictor(self) -> str:
        """Whose guesses are acted on."""

    @property
    def horizon(self) -> int:
        """How many MoE layers ahead it looks."""


def guesses(
    trace: Trace, batches: Batches, source: Source, seed: int = 0, train: Trace | None = None
) -> Guesses:
    """Let a predictor say, after each decode batch, what the next routed layer will want.

    After the last layer of a token, the next routed layer is the first layer of the turn's next
    token, if the predictor reaches it: the token is sampled by then. A learned predictor guesses
    each turn from the others; the first half of a single turn trains, and nothing is guessed there. With
    `train` it learns on that trace.

    Parameters
    ----------
    trace : Trace
    batches : Batches
        Those of that trace.
    source : object
        With ``predictor``, a name or ``module:Class``, where need be with parameters,
        ``oracle@accuracy=0.75``; and ``horizon``, MoE layers ahead for a predictor that has one.
    seed : int
    train : Trace, optional

    Raises
    ------
    UsageError
        The predictor is unknown, cannot be acted on in time, or the horizon is past the model.
    MissingDataError
        The trace lacks a column that the predictor needs; the sentence names those that run on it.
    """
    (found,) = all_guesses(trace, batches, [source], seed, train, jobs=1)
    return found


@one_blas_thread()
def all_guesses(
    trace: Trace,
    batches: Batches,
    sources: Sequence[Source],
    seed: int = 0,
    train: Trace | None = None,
    jobs: int | None = None,
) -> list[Guesses]:
    """Return the `guesses` of several sources, for which the trace is read once.

    Layers are asked about on up to `jobs` threads; on all cores by default.
    """
    threads = threads_of(jobs)
    entries = [Entry(_predictor(trace, source, seed), source.horizon) for source in sources]
    training = Training(trace, DecodedTurns.of(trace), train)
    training.teach(entries)
    notes = [_Notes.of(trace, batches) for _ in entries]
    for _, parts in unseen_parts(trace, entries, training):
        for entry, part, note in zip(entries, parts, notes, strict=True):
            if part is not None:
                note.take(entry.predictor, part, threads)
    return [Guesses(note.keys, note.weights) for note in notes]


@dataclass(eq=False)
class _Notes:
    """What one predictor has said so far.

    Attributes
    ----------
    batch : int64 [T, L]
        The batch of each decoded token's pass at each MoE layer.
    most : int
        Tokens that are verified together at most.
    keys : int32 [B, K]
        The predicted keys after each batch, -1 where there is none.
    weights : float32 [B, K] or None
    """

    batch: np.ndarray
    most: int
    keys: np.ndarray
    weights: np.ndarray | None

    @classmethod
    def of(cls, trace: Trace, batches: Batches) -> "_Notes":
        n_layers = len(trace.moe_layers)
        decoded = np.flatnonzero(batches.phase == DECODE)
        n_whole = len(decoded) // n_layers  # the last pass may be cut
        # Tokens that are verified together each have k guesses: the best of each token come first.
        most = trace.most_decoded_at_once
        shape = len(batches), trace.top_k * most
        return cls(
            decoded[: n_whole * n_layers].reshape(-1, n_layers),
            most,
            np.full(shape, -1, np.int32),
            np.full(shape, np.nan, np.float32),
        )

    def take(self, predictor: Predictor, part: Block, jobs: int) -> None:
        """Ask a predictor about tokens that it has not seen, the layers on up to `jobs` threads."""
        k, n_layers = self.keys.shape[1] // self.most, self.batch.shape[1]
        n_expert = predictor.routers.n_expert
        place = np.arange(len(part)) - np.searchsorted(part.decode_pass, part.decode_pass)
        columns = place[:, None] + self.most * np.arange(k)

        def ask(layer: int) -> None:
            # Layer 0 is guessed after the last layer of the token before, if there is one.
            among = part.has_previous if layer == 0 else None
            ranking = rank_layer(predictor, part, layer, among)
            if ranking is None:
                return
            named = name_best(ranking.order, k)
            of_pass = part.decode_pass
            after = self.batch[of_pass - 1, -1] if layer == 0 else self.batch[of_pass, layer - 1]
            ranked = ranking.tokens
            at = after[ranked][:, None], columns[ranked]
            none = named < 0
            self.keys[at] = np.where(none, -1, layer * n_expert + named)[ranked]
            with silent_overflow():
                predicted = predictor.weights(part, layer, ranking.scores, np.maximum(named, 0))
            weights = self.weights
            if predicted is None:
                self.weights = None
            elif weights is not None:
                weights[at] = np.where(none, np.nan, predicted)[ranked]

        for _ in on_threads(ask, range(n_layers), jobs):
            pass


def _predictor(trace: Trace, source: Source, seed: int) -> Predictor:
    """Return the predictor that `source` names, or refuse it as `guesses` says."""
    name, *settings = source.predictor.split("@")
    cls, horizon = PREDICTORS.find(name), source.horizon
    params = make_params(cls.name, cls.Params, _parsed(settings))
    routers = Routers(trace)
    check_horizons([horizon] if cls.has_horizon else [], routers.n_layers)
    if reason := why_unusable(trace, routers, cls):
        others = [
            other.name
            for other in PREDICTORS
            if other.in_time and not why_unusable(trace, routers, other)
        ]
        raise MissingDataError(
            f"{reason} What a policy can act on here, by its parameter predictor: "
            f"{', '.join(others)}."
        )
    if not cls.in_time:
        raise UsageError(
            f"No policy can act on {cls.name}: it needs the gate input of the layer itself; take "
            "'oracle' to see what a perfect prediction would buy."
        )
    return cls(routers, horizon, seed, params)


def _parsed(settings: Sequence[str]) -> dict[str, str]:
    """Read ``FIELD=VALUE`` of each of the settings behind a predictor's name."""
    values: dict[str, str] = {}
    for text in settings:
        field, equals, value = text.partition("=")
        if not equals or field in values:
            raise UsageError(
                "A predictor's parameters are written NAME@FIELD=VALUE, each once, as in "
                f"oracle@accuracy=0.75; {shown(text)} cannot be read so."
            )
        values[field] = value
    return values
