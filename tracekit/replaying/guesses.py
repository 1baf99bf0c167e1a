"""What a predictor has in hand after each batch of a run, for the policies that act on it."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from threadpoolctl import threadpool_limits

from tracekit.params import make_params
from tracekit.policies.base import Batches, Guesses
from tracekit.predictors import PREDICTORS, Predictor
from tracekit.routing.blocks import Block, decode_blocks
from tracekit.routing.routers import Routers
from tracekit.routing.turns import DecodedTurns
from tracekit.scoring.ranks import name_best
from tracekit.scoring.run import check_scores
from tracekit.scoring.training import (
    Entry,
    Training,
    hold_out_turn,
    learn,
    needed_columns,
    unseen_part,
)
from tracekit.scoring.usable import check_horizons, check_usable
from tracekit.trace import Trace
from tracekit.trace.errors import MissingDataError, UsageError
from tracekit.trace.schema import DECODE


class Source(Protocol):
    """Parameters of a policy that acts on a predictor's guesses."""

    predictor: str
    horizon: int


@threadpool_limits.wrap(limits=1, user_api="blas")  # as in `predict`
def guesses(trace: Trace, batches: Batches, source: Source, seed: int = 0) -> Guesses:
    """Let a predictor say, after each decode batch, what the next routed layer will want.

    After the last layer of a token that is the first layer of the next token of the turn, if the
    predictor reaches it: the token is sampled by then. A learned predictor guesses each turn from
    the others; of a single turn its first half trains, and nothing is guessed there.

    Parameters
    ----------
    trace : Trace
    batches : Batches
        Of that trace.
    source : object
        With ``predictor``, a name or ``module:Class``, where need be with parameters,
        ``oracle@accuracy=0.75``; and ``horizon``, MoE layers ahead for a predictor that has one.
    seed : int

    Raises
    ------
    UsageError
        The predictor is unknown, cannot be acted on in time, or the horizon is past the model.
    MissingDataError
        The trace lacks a column that the predictor needs; the sentence names those that run on it.
    """
    name, *settings = source.predictor.split("@")
    cls, horizon = PREDICTORS.find(name), source.horizon
    params = make_params(cls.name, cls.Params, _parsed(settings))
    routers = Routers(trace)
    check_horizons([horizon] if cls.has_horizon else [], routers.n_layers)
    if reason := check_usable(trace, routers, cls):
        able = [
            other.name
            for other in PREDICTORS
            if other.in_time and not check_usable(trace, routers, other)
        ]
        raise MissingDataError(
            f"{reason} What a policy can act on here, by its parameter predictor: {', '.join(able)}."
        )
    if not cls.in_time:
        raise UsageError(
            f"No policy can act on {cls.name}: it needs the gate input of the layer itself; take "
            "'oracle' to see what a perfect prediction would buy."
        )
    entry = Entry(cls(routers, horizon, seed, params), horizon)
    training = Training(trace, DecodedTurns.of(trace))
    learn([entry], training)

    k, n_layers = routers.top_k, routers.n_layers
    rows = np.flatnonzero(batches.phase == DECODE).reshape(-1, n_layers)
    keys = np.full((len(batches), k), -1, np.int32)
    weights = np.full((len(batches), k), np.nan, np.float32)
    weighted = True
    columns = needed_columns([entry.predictor], *(["weights"] if trace.has("weights") else []))
    for block in decode_blocks(trace, columns):
        part = unseen_part(entry, block, training)
        if part is None:
            continue
        hold_out_turn(entry, part)
        tokens = part.start + np.arange(len(part))
        for layer in range(n_layers):
            # Layer 0 is guessed after the last layer of the token before, if there is one.
            ranked = part.has_previous if layer == 0 else np.ones(len(part), bool)
            ranked = ranked & entry.predictor.ranks(part)
            if not entry.predictor.reaches(layer) or not ranked.any():
                continue
            named, predicted = _named(entry.predictor, part, layer, ranked)
            after = rows[tokens - 1, -1] if layer == 0 else rows[tokens, layer - 1]
            keys[after[ranked]] = np.where(named < 0, -1, layer * routers.n_expert + named)[ranked]
            weighted &= predicted is not None
            if weighted:
                weights[after[ranked]] = np.where(named < 0, np.nan, predicted)[ranked]
    return Guesses(keys, weights if weighted else None)


def _parsed(settings: Sequence[str]) -> dict[str, str]:
    """Read ``FIELD=VALUE`` of each of the settings behind a predictor's name."""
    values: dict[str, str] = {}
    for text in settings:
        field, equals, value = text.partition("=")
        if not equals or field in values:
            raise UsageError(
                "A predictor's parameters are written NAME@FIELD=VALUE, each once, as in "
                f"oracle@accuracy=0.75; {text!r} cannot be read so."
            )
        values[field] = value
    return values


def _named(
    predictor: Predictor, block: Block, layer: int, ranked: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the k best experts of each token, best first, and their predicted weights."""
    scores = predictor.scores(block, layer)
    check_scores(predictor, block, layer, scores[ranked], block.step[ranked])
    order = predictor.routers.selection_scores(layer, scores) if predictor.gives_logits else scores
    named = name_best(order, predictor.routers.top_k)
    return named, predictor.weights(block, layer, scores, np.maximum(named, 0))
