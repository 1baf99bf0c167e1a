"""How many tokens each turn of a trace decoded, and in how many passes."""

from dataclasses import dataclass

import numpy as np

from tracekit.routing.cut import cut_pass
from tracekit.routing.grid import with_decoded
from tracekit.trace import Trace
from tracekit.trace.errors import MissingDataError
from tracekit.trace.schema import DECODE


def n_decode_passes(trace: Trace) -> int:
    """Return how many passes decoded tokens: fewer than those where some verified several."""
    steps = trace.steps(["pass", "phase"])
    return len(np.unique(steps["pass"][steps["phase"] == DECODE]))


@dataclass(frozen=True, eq=False)
class DecodedTurns:
    """The turns of a trace that decoded something.

    Attributes
    ----------
    turn : int32 [N]
        Their numbers.
    tokens : int64 [N]
        How many tokens each decoded.
    """

    turn: np.ndarray
    tokens: np.ndarray

    @classmethod
    def of(cls, trace: Trace) -> "DecodedTurns":
        """Count the decoded tokens of each turn.

        Raises
        ------
        MissingDataError
            No turn decoded a token.
        """
        passes = trace.passes
        decode = (passes.phase == DECODE) & (passes.number != cut_pass(trace))
        turn, of_turn = np.unique(passes.turn[decode], return_inverse=True)
        n_rows = np.bincount(of_turn, passes.n_of_pass[decode]).astype(np.int64)
        if not len(turn):
            raise MissingDataError(
                f"{trace.name} holds no decoded token, and in a prefill every routing is known at "
                f"once; {with_decoded(trace, 1)}."
            )
        return cls(turn, n_rows // len(trace.moe_layers))
