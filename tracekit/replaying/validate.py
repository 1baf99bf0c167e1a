"""A replay against what the engine recorded, lookup by lookup."""

from dataclasses import dataclass

import numpy as np

from tracekit.policies.base import Batches, Cell, Policy
from tracekit.replaying.rows import Validation
from tracekit.replaying.slots import states_of_lookups
from tracekit.routing.residency import UNKNOWN, recorded_states
from tracekit.trace import Trace, UsageError
from tracekit.trace.schema import DECODE, MISS


@dataclass(frozen=True, eq=False)
class Recorded:
    """The recorded residency of the decode lookups of a run.

    Attributes
    ----------
    lookups : int64 [M]
        Which lookups of `Batches` were recorded.
    resident : bool [M]
        Whether the engine found the expert resident; a prefetched one is.
    """

    lookups: np.ndarray
    resident: np.ndarray

    def compare(self, policy: Policy, cell: Cell) -> Validation:
        """Count the lookups that `cell` answers otherwise than the engine did.

        Raises
        ------
        UsageError
            The policy does not say which lookups hit.
        """
        if cell.hit is None:
            raise UsageError(
                f"Policy {policy.name!r} does not say which lookups hit, so it cannot be "
                "validated; leave it out."
            )
        mismatches = int((cell.hit[self.lookups] != self.resident).sum())
        return Validation(len(self.lookups), mismatches)


def recorded_residency(trace: Trace, batches: Batches) -> Recorded:
    """Read the residency of the decode lookups of `trace`.

    Several tokens of a pass may select one expert; its lookup is that of the first of them.

    Raises
    ------
    UsageError
        The trace carries no residency.
    """
    if not trace.has("residency"):
        raise UsageError(
            f"{trace.name} carries no residency, so a replay cannot be validated against it; "
            "record with a streaming cache to have it."
        )
    states = states_of_lookups(trace, batches, recorded_states(trace))
    decode = np.repeat(batches.phase == DECODE, batches.lookups)
    known = np.flatnonzero(decode & (states != UNKNOWN))
    return Recorded(known, states[known] != MISS)
