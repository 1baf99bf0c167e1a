"""Which decoded tokens of a replay count: all but the first few of each turn.

In: a trace. Out: how many tokens and passes count, and batches that say which. Nothing here knows a
policy.
"""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.figures import counted as number_of
from tracekit.policies.base import Batches
from tracekit.trace import Trace, UsageError
from tracekit.trace.schema import DECODE


@dataclass(frozen=True)
class Counted:
    """Which decoded tokens count.

    Attributes
    ----------
    tokens, passes : int
        How many decoded tokens count that stayed, and in how many passes they were decoded.
    skipped : int [P] or None
        The decode passes that do not count; None: there are none.
    """

    tokens: int
    passes: int
    skipped: np.ndarray | None = None

    def marked(self, batches: Batches) -> Batches:
        """Return `batches` that say which of them no figure of decoded tokens counts."""
        if self.skipped is None:
            return batches
        skipped = (batches.phase == DECODE) & np.isin(batches.pass_id, self.skipped)
        return replace(batches, skipped=skipped)


def without_first(trace: Trace, skip: int) -> Counted:
    """Leave the first `skip` decoded tokens of each turn out of the figures of decoded tokens.

    A pass that verifies several tokens counts if `skip` tokens of its turn had stayed before it.

    Parameters
    ----------
    trace : Trace
    skip : int

    Raises
    ------
    UsageError
        No turn decoded more than `skip` tokens.
    """
    steps = trace.steps(["turn", "pass", "phase"])
    decode = steps["phase"] == DECODE
    passes, first, of_step = np.unique(
        steps["pass"][decode], return_index=True, return_inverse=True
    )
    stayed = np.bincount(of_step, trace.kept[decode], len(passes)).astype(np.int64)
    before = _before(steps["turn"][decode][first], stayed)
    counts = before >= skip
    found = Counted(
        int(stayed[counts].sum()),
        int(np.count_nonzero(counts)),
        passes[~counts] if skip else None,
    )
    if skip and not found.tokens:
        most = int((before + stayed).max(initial=0))
        raise UsageError(
            f"skip = {skip} leaves no decoded token of {trace.name} to count: its longest turn has "
            f"{number_of(most, 'decoded token')}; skip fewer."
        )
    return found


def _before(turn: np.ndarray, stayed: np.ndarray) -> np.ndarray:
    """Return how many tokens of its turn had stayed before each pass, int64 [passes]."""
    before = np.cumsum(stayed) - stayed
    begins = np.flatnonzero(np.diff(turn, prepend=turn[:1] - 1))
    lengths = np.diff(np.append(begins, len(turn)))
    return np.asarray(before - np.repeat(before[begins], lengths))
