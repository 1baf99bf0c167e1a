"""Scoring predictors on the decoded tokens of a trace."""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from tracekit.predictors.base import Predictor
from tracekit.routing.blocks import Block, decode_blocks
from tracekit.routing.routers import Routers
from tracekit.scoring.training import (
    Entry,
    Training,
    hold_out_turn,
    needed_columns,
    unseen_part,
)
from tracekit.stats.units import Units
from tracekit.trace import Trace
from tracekit.trace.errors import TraceError
from tracekit.trace.schema import DECODE


def score(
    trace: Trace,
    entries: Sequence[Entry],
    routers: Routers,
    training: Training,
    units: Units,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Score `entries` on every decoded token of `trace` into their tallies.

    Parameters
    ----------
    trace : Trace
    entries : sequence of Entry
    routers : Routers
    training : Training
    units : Units
    jobs : int
        Threads, over the layers of a block.
    progress : callable, optional
        Called with (routings done, routings in all).
    """
    columns = needed_columns(
        [e.predictor for e in entries], *(["weights"] if trace.has("weights") else [])
    )
    total = int(np.count_nonzero(trace.routing(["phase"])["phase"] == DECODE))
    with ThreadPoolExecutor(jobs) as pool:
        for block in decode_blocks(trace, columns):
            scored = []
            for entry in entries:
                part = unseen_part(entry, block, training)
                entry.tally.unscored += len(block) - (0 if part is None else len(part))
                if part is not None:
                    hold_out_turn(entry, part)
                    scored.append((entry, part))
            score_parts(scored, routers, units, pool)
            if progress:
                progress((block.start + len(block)) * routers.n_layers, total)


def score_parts(
    parts: Sequence[tuple[Entry, Block]], routers: Routers, units: Units, pool: Executor
) -> None:
    """Score each entry on its part of a block, the layers spread over the threads of `pool`."""

    def score_layer(layer: int) -> None:
        _score_layer(parts, routers, units, layer)

    list(pool.map(score_layer, range(routers.n_layers)))  # raises what a thread raised


def _score_layer(
    parts: Sequence[tuple[Entry, Block]], routers: Routers, units: Units, layer: int
) -> None:
    for entry, block in parts:
        predictor, tally = entry.predictor, entry.tally
        ranked = predictor.ranks(block) if predictor.reaches(layer) else np.zeros(len(block), bool)
        n_ranked = int(np.count_nonzero(ranked))
        tally.skip(layer, len(block) - n_ranked)
        if not n_ranked:
            continue
        scores = predictor.scores(block, layer)
        check_scores(predictor, block, layer, scores[ranked], block.step[ranked])
        if predictor.gives_logits:
            scores = routers.selection_scores(layer, scores)
        selected = block.experts[:, layer]
        weights = None if block.weights is None else block.weights[:, layer]
        unit = units.of_stretch(block.turn, block.start_in_turn, len(block))
        if n_ranked < len(block):
            scores, selected, unit = scores[ranked], selected[ranked], unit[ranked]
            weights = None if weights is None else weights[ranked]
        tally.add(layer, scores, selected, weights, unit)


def check_scores(
    predictor: Predictor, block: Block, layer: int, scores: np.ndarray, step: np.ndarray
) -> None:
    """Refuse scores that are no numbers, and say of which token and layer.

    Raises
    ------
    TraceError
    """
    bad = np.isnan(scores).any(axis=1)
    if not bad.any():
        return
    source = layer - predictor.horizon if predictor.has_horizon else layer
    number = predictor.routers.layer_ids[source]
    what = (
        "the gate input is missing or not a number"
        if "gate_input" in predictor.needs
        else f"{predictor.name} gave a score that is not a number"
    )
    raise TraceError(
        f"In turn {block.turn}, step {step[bad.argmax()]}, layer {number}, {what}; leave the "
        "predictors that need it out, or record the trace again."
    )
