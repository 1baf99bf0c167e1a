"""Online predictors are led through a trace, token by token in the order they ran.

In: a trace and online predictors. Out: the decoded tokens, block by block; at each block the
predictors have learned what ran before it, and can be asked about it. This module knows nothing of
scores.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.predictors import OnlinePredictor
from tracekit.routing.blocks import BLOCK_TOKENS, Block, decode_blocks
from tracekit.routing.passed import Passed, in_order, passed_of
from tracekit.trace import Trace

# Scores that a predictor may keep for a block: those of all layers, 64 MB.
MOST_SCORES = 1 << 24


@dataclass(eq=False)
class Path:
    """What an online predictor has seen so far.

    Attributes
    ----------
    predictor : OnlinePredictor
    tokens : int
        Tokens that it has learned from, those of prompts too.
    seconds : float
        Time spent learning, reading the trace excluded.
    """

    predictor: OnlinePredictor
    tokens: int = 0
    seconds: float = 0.0

    def forget(self) -> None:
        """Begin anew."""
        self.predictor.forget()
        self.tokens = 0

    def take_in(self, tokens: Passed) -> None:
        """Let the predictor learn tokens that nobody asks about."""
        start = time.perf_counter()
        self.predictor.take_in(tokens)
        self.seconds += time.perf_counter() - start
        self.tokens += len(tokens)

    def meet(self, block: Block) -> None:
        """Let the predictor meet a block that it is asked about."""
        start = time.perf_counter()
        self.predictor.meet(block)
        self.seconds += time.perf_counter() - start
        self.tokens += int(np.count_nonzero(block.kept))


def led_through(
    trace: Trace,
    paths: Sequence[Path],
    columns: Sequence[str] = (),
    block_tokens: int = BLOCK_TOKENS,
) -> Iterator[Block]:
    """Iterate over the decoded tokens of `trace`, and lead online predictors along.

    Parameters
    ----------
    trace : Trace
    paths : sequence of Path
        Without any, this is `decode_blocks`.
    columns, block_tokens
        As for `decode_blocks`.

    Yields
    ------
    Block
        As of `decode_blocks`, but that no prompt ran between the passes of a block. Until the next
        one is asked for, the predictors can be asked about this one.
    """
    if not paths:
        yield from decode_blocks(trace, columns, block_tokens)
        return
    block_tokens = min(
        block_tokens, max(1, MOST_SCORES // (trace.n_expert * len(trace.moe_layers)))
    )
    for tokens in in_order(trace, columns, block_tokens):
        if isinstance(tokens, Passed):
            for path in paths:
                path.take_in(tokens)
        else:
            for path in paths:
                path.meet(tokens)
            yield tokens


def let_pass(trace: Trace, paths: Sequence[Path], block_tokens: int = BLOCK_TOKENS) -> None:
    """Let online predictors learn all of `trace`, which nobody asks about."""
    if not paths:
        return
    for tokens in in_order(trace, (), block_tokens):
        for path in paths:
            path.take_in(tokens if isinstance(tokens, Passed) else passed_of(tokens))
