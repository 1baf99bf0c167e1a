"""What a predictor says of each routing that it has not seen, block by block and layer by layer.

In: a trace, and predictors that have learned. Out: the scores of every expert, for the tokens that a
predictor can rank. This module is the only place where a predictor is asked. It knows nothing of
what becomes of the answer: `scoring.run` counts hits, `replaying.guesses` acts on it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from tracekit.predictors import PREDICTORS, Predictor
from tracekit.routing.blocks import BLOCK_TOKENS, Block
from tracekit.scoring.training import Entry, Training, silent_overflow
from tracekit.scoring.usable import columns_to_read
from tracekit.trace import Trace
from tracekit.trace.errors import TraceError


@dataclass(frozen=True, eq=False)
class Ranking:
    """What a predictor says of T tokens at one layer.

    Attributes
    ----------
    tokens : bool [T]
        The tokens that it ranks; rows of the others say nothing.
    scores : float32 [T, n_expert]
        As the predictor gave them.
    order : float32 [T, n_expert]
        What is ranked, higher first: the scores, or what the model's selection rule makes of them
        where they are router logits.
    """

    tokens: np.ndarray
    scores: np.ndarray
    order: np.ndarray


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep matrix products on the thread that asks for them.

    Layers are spread over threads of our own. The threads of the BLAS wait by spinning, which costs
    a hundredfold where another process wants the cores.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def unseen_parts(
    trace: Trace,
    entries: Sequence[Entry],
    training: Training,
    block_tokens: int = BLOCK_TOKENS,
) -> Iterator[tuple[Block, list[Block | None]]]:
    """Iterate over the decoded tokens of `trace`, with what each entry may be asked about.

    Parameters
    ----------
    trace : Trace
        That of `training`.
    entries : sequence of Entry
    training : Training
        Where they have learned.
    block_tokens : int
        The most tokens in a block.

    Yields
    ------
    Block
        Tokens of one turn, with the columns that the predictors need and, where the trace has them,
        the weights.
    list of Block or None
        For each entry, the tokens among them that it has not trained on; None if there are none.
        Until the next block is asked for, the entry's predictor is ready for that turn.
    """
    optional = ["weights"] if trace.has("weights") else []
    columns = columns_to_read([entry.predictor for entry in entries], *optional)
    for block in training.blocks(entries, columns, block_tokens):
        yield block, [training.unseen(entry, block) for entry in entries]


def rank_layer(
    predictor: Predictor, block: Block, layer: int, among: np.ndarray | None = None
) -> Ranking | None:
    """Ask a predictor about a layer; None if it can rank no token there.

    Parameters
    ----------
    predictor : Predictor
    block : Block
    layer : int
        Index among the MoE layers.
    among : bool [T], optional
        The tokens that are asked about; all by default.

    Raises
    ------
    TraceError
        A score is not a number.
    """
    if not predictor.reaches(layer):
        return None
    tokens = predictor.ranks(block) if among is None else predictor.ranks(block) & among
    if not tokens.any():
        return None
    with silent_overflow():
        scores = predictor.scores(block, layer)
        _check(predictor, block, layer, scores, tokens)
        if not predictor.gives_logits:
            return Ranking(tokens, scores, scores)
        return Ranking(tokens, scores, predictor.routers.selection_scores(layer, scores))


def _check(
    predictor: Predictor, block: Block, layer: int, scores: np.ndarray, tokens: np.ndarray
) -> None:
    """Refuse scores of `tokens` that are not numbers; the sentence says of which token and layer."""
    bad = np.isnan(scores).any(axis=1) & tokens
    if not bad.any():
        return
    first = int(bad.argmax())
    source = layer - predictor.horizon if predictor.has_horizon else layer
    number = predictor.routers.layer_ids[source]
    place = f"In turn {block.turn}, step {block.step[first]}, layer {number}"
    needs_gate = "gate_input" in predictor.needs
    if needs_gate and not np.isfinite(block.gate_input[first, source]).all():
        raise TraceError(
            f"{place}, the gate input is missing or not a number; leave the predictors that need it "
            "out, or record the trace again."
        )
    if type(predictor) in [*PREDICTORS]:
        raise TraceError(
            f"{place}, {predictor.name} gave a score that is not a number; leave it out, or record the "
            "trace again."
        )
    raise TraceError(
        f"{place}, {predictor.name} gave a score that is not a number (NaN); its `scores` must give a "
        "number for every expert of each token that it ranks."
    )
