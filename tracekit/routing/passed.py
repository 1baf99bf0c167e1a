"""The tokens of a trace in the order they ran, for what learns while they run.

In: a trace. Out: passes of prompts, with the layers that each token reached, and blocks of decoded
tokens. A prompt that was cancelled is left out, as are rejected drafts: what was taken back is no part
of the text, and a prompt that is begun anew would stand there twice. One pass of a prompt, or one
block, is in memory at a time. This module knows nothing of what is learned from them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tracekit.routing.blocks import BLOCK_TOKENS, Block, decode_blocks
from tracekit.trace.schema import DECODE, PREFILL

if TYPE_CHECKING:
    from tracekit.trace import Trace


@dataclass(frozen=True, eq=False)
class Passed:
    """T consecutive tokens that have passed, and stayed.

    Attributes
    ----------
    turn : int
    experts : uint16 [T, L, k]
        Selected experts in slot order; 0 where a token did not reach the layer.
    reached : bool [T, L]
        Of the last layer, an engine computes only the last token of a prompt.
    """

    turn: int
    experts: np.ndarray
    reached: np.ndarray

    def __len__(self) -> int:
        return len(self.experts)


def passed_of(block: Block) -> Passed:
    """Return the decoded tokens of `block` that stayed."""
    experts = block.experts[block.kept]
    return Passed(block.turn, experts, np.ones(experts.shape[:2], np.bool_))


def in_order(
    trace: "Trace", columns: Sequence[str] = (), block_tokens: int = BLOCK_TOKENS
) -> Iterator[Passed | Block]:
    """Iterate over all tokens of `trace` in the order they ran.

    Parameters
    ----------
    trace : Trace
    columns, block_tokens
        As for `decode_blocks`.

    Yields
    ------
    Passed or Block
        A pass of a prompt, without the tokens that were taken back; or a block of decoded tokens, as
        of `decode_blocks`, but that no prompt ran between its passes.
    """
    prompts = _prompt_passes(trace)
    prompt = next(prompts, None)
    number = _decode_passes(trace)
    for block in decode_blocks(trace, columns, block_tokens):
        passes = number[block.decode_pass]
        start = 0
        while start < len(block):
            while prompt is not None and prompt[0] < passes[start]:
                yield prompt[1]
                prompt = next(prompts, None)
            stop = len(block) if prompt is None else int(np.searchsorted(passes, prompt[0]))
            yield block.cut(start, stop)
            start = stop
    while prompt is not None:
        yield prompt[1]
        prompt = next(prompts, None)


def _decode_passes(trace: "Trace") -> np.ndarray:
    """Return the number of each decode pass, ascending."""
    steps = trace.steps(["pass", "phase"])
    return np.unique(steps["pass"][steps["phase"] == DECODE])


def _prompt_passes(trace: "Trace") -> Iterator[tuple[int, Passed]]:
    """Iterate over the prompt passes; each with its number and the tokens of it that stayed."""
    steps = trace.steps(["pass", "step", "phase"])
    prompt = np.flatnonzero(steps["phase"] == PREFILL)
    passes, step_of, kept = steps["pass"][prompt], steps["step"][prompt], trace.kept[prompt]
    place_of = np.zeros(int(trace.moe_layers.max(initial=0)) + 1, np.int64)
    place_of[trace.moe_layers] = np.arange(len(trace.moe_layers))
    shape = len(trace.moe_layers), trace.top_k
    number, turn = -1, -1
    rows_of_pass = slice(0, 0)
    experts, reached = np.empty((0, *shape), np.uint16), np.empty((0, shape[0]), np.bool_)

    def tokens() -> tuple[int, Passed]:
        stayed = kept[rows_of_pass]
        return number, Passed(turn, experts[stayed], reached[stayed])

    for rows in trace.iter_routing(["turn", "pass", "step", "layer", "experts"], phase=PREFILL):
        edges = np.flatnonzero(np.diff(rows["pass"])) + 1
        for first, last in zip([0, *edges], [*edges, len(rows["pass"])], strict=True):
            if int(rows["pass"][first]) != number:  # a long pass comes in several pieces
                if number >= 0:
                    yield tokens()
                number, turn = int(rows["pass"][first]), int(rows["turn"][first])
                rows_of_pass = slice(*np.searchsorted(passes, [number, number + 1]).tolist())
                n_tokens = rows_of_pass.stop - rows_of_pass.start
                experts = np.zeros((n_tokens, *shape), np.uint16)
                reached = np.zeros((n_tokens, shape[0]), np.bool_)
            token = np.searchsorted(step_of[rows_of_pass], rows["step"][first:last])
            layer = place_of[rows["layer"][first:last]]
            experts[token, layer] = rows["experts"][first:last]
            reached[token, layer] = True
    if number >= 0:
        yield tokens()
