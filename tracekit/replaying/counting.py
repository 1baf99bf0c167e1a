"""Which decoded tokens of a replay count: all but the first few of each turn.

In: a trace and its batches. Out: batches that say what counts, and how many tokens and passes that
are. Nothing here knows a policy.
"""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.figures import counted as number_of
from tracekit.policies.base import Batches
from tracekit.trace import Trace, UsageError
from tracekit.trace.schema import DECODE


@dataclass(frozen=True)
class Counted:
    """How many decoded tokens count that stayed, and in how many passes they were decoded."""

    tokens: int
    passes: int


def without_first(trace: Trace, batches: Batches, skip: int) -> tuple[Batches, Counted]:
    """Leave the first `skip` decoded tokens of each turn out of the figures of decoded tokens.

    A pass that verifies several tokens counts if `skip` tokens of its turn had stayed before it.

    Parameters
    ----------
    trace : Trace
    batches : Batches
        Of that trace.
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
    found = Counted(int(stayed[counts].sum()), int(np.count_nonzero(counts)))
    if not skip:
        return batches, found
    if not found.tokens:
        most = int((before + stayed).max(initial=0))
        raise UsageError(
            f"skip = {skip} leaves no decoded token of {trace.name} to count: its longest turn has "
            f"{number_of(most, 'decoded token')}; skip fewer."
        )
    skipped = (batches.phase == DECODE) & ~np.isin(batches.pass_id, passes[counts])
    return replace(batches, skipped=skipped), found


def _before(turn: np.ndarray, stayed: np.ndarray) -> np.ndarray:
    """Return how many tokens of its turn had stayed before each pass, int64 [passes]."""
    before = np.cumsum(stayed) - stayed
    begins = np.flatnonzero(np.diff(turn, prepend=turn[:1] - 1))
    lengths = np.diff(np.append(begins, len(turn)))
    return np.asarray(before - np.repeat(before[begins], lengths))
