"""Scoring of predictors on the decoded tokens of a trace.

In: predictors that have learned. Out: a tally for each. Layers are spread over threads, so a
predictor must be able to answer for several layers at once.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from tracekit.predictors import Predictor
from tracekit.routing.blocks import BLOCK_TOKENS, Block
from tracekit.scoring.ranking import rank_layer, unseen_parts
from tracekit.scoring.tally import Tally
from tracekit.scoring.training import Entry, Training
from tracekit.stats.units import Units
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE


def score(
    trace: Trace,
    entries: Sequence[Entry],
    training: Training,
    named: tuple[int, ...],
    units: Units,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    block_tokens: int = BLOCK_TOKENS,
) -> list[Tally]:
    """Score `entries` on every decoded token of `trace`.

    Parameters
    ----------
    trace : Trace
    entries : sequence of Entry
    training : Training
        Where they have learned.
    named : tuple of int
        Numbers of experts named, ascending, k among them.
    units : Units
        Those of the bootstrap.
    jobs : int
        Threads, over the layers of a block.
    progress : callable, optional
        Called with (routings done, routings in all).
    block_tokens : int
        The most tokens in a block.

    Returns
    -------
    list of Tally
        One for each entry.
    """
    n_layers = len(trace.moe_layers)
    tallies = [Tally(n_layers, trace.top_k, named, len(units)) for _ in entries]
    total = trace.passes.rows_of_phase(DECODE)
    with ThreadPoolExecutor(jobs) as pool:
        for block, parts in unseen_parts(trace, entries, training, block_tokens):
            asked = []
            for entry, tally, part in zip(entries, tallies, parts, strict=True):
                tally.unscored += len(block) - (0 if part is None else len(part))
                if part is not None:
                    asked.append((entry.predictor, tally, part))
            score_parts(asked, units, pool)
            if progress:
                progress((block.start + len(block)) * n_layers, total)
    return tallies


def score_parts(
    parts: Sequence[tuple[Predictor, Tally, Block]], units: Units, pool: Executor
) -> None:
    """Score each predictor on its part of a block, the layers spread over the threads of `pool`."""

    def score_layer(layer: int) -> None:
        for predictor, tally, block in parts:
            _score_layer(predictor, tally, block, units, layer)

    n_layers = max((block.experts.shape[1] for _, _, block in parts), default=0)
    list(pool.map(score_layer, range(n_layers)))  # raises what a thread raised


def _score_layer(
    predictor: Predictor, tally: Tally, block: Block, units: Units, layer: int
) -> None:
    ranking = rank_layer(predictor, block, layer)
    if ranking is None:
        tally.skip(layer, len(block))
        return
    tokens, order = ranking.tokens, ranking.order
    selected = block.experts[:, layer]
    weights = None if block.weights is None else block.weights[:, layer]
    unit = units.of_stretch(block.turn, block.start_in_turn, len(block))
    n_ranked = int(np.count_nonzero(tokens))
    if n_ranked < len(block):
        tally.skip(layer, len(block) - n_ranked)
        order, selected, unit = order[tokens], selected[tokens], unit[tokens]
        weights = None if weights is None else weights[tokens]
    tally.add(layer, order, selected, weights, unit)
