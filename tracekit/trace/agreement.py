"""Whether a replay gives what the engine recorded: the facts that ``trace.json`` keeps, and in words.

In: what was found when a recording was compared with its replay. Out: one sentence for a reader of
the figures. Nothing is compared here: that takes the rules of a cache, which this folder does not know.
"""

from dataclasses import dataclass
from typing import Any

MIB = 2**20

# The reason why a trace of tracekit's own recorder differs, beside any other.
RECORDER_AT_FAULT = (
    "tracekit recorded it itself, so its recorder is at fault or the trace was changed since"
)


@dataclass(frozen=True)
class Agreement:
    """What came out when the recording of a cache was compared with a replay.

    Attributes
    ----------
    policy : str
        The policy that was replayed: the one that the trace names, else ``lru``.
    budget_bytes : int
        The recorded budget.
    n_lookups, n_mismatched : int
        Lookups whose residency is recorded, and those that the replay answers otherwise.
    n_passes, n_passes_mismatched : int
        Passes of which the engine counted lookups, hits or bytes, and those where the replay counts
        otherwise.
    hits_recorded, hits_replayed : int or None
        Hits of the lookups, or of the passes, that were compared; None where none were recorded.
    first_mismatch : dict or None
        ``turn``, ``pass``, ``step``, ``layer`` and ``expert`` of the first such lookup, and whether
        it was a hit as ``recorded`` and as ``replayed``; of counts ``turn`` and ``pass``, and the
        counts as recorded and as replayed.
    likely_reason : str or None
        Why they differ, as far as it was tried and found to be so.
    """

    policy: str
    budget_bytes: int
    n_lookups: int = 0
    n_mismatched: int = 0
    n_passes: int = 0
    n_passes_mismatched: int = 0
    hits_recorded: int | None = None
    hits_replayed: int | None = None
    first_mismatch: dict[str, Any] | None = None
    likely_reason: str | None = None

    def __post_init__(self) -> None:
        for part, whole in (
            (self.n_mismatched, self.n_lookups),
            (self.n_passes_mismatched, self.n_passes),
        ):
            if not 0 <= part <= whole:
                raise ValueError(f"{part} of {whole} cannot differ; verify the trace anew")
        if self.first_mismatch is not None and not {"recorded", "replayed"} <= {
            *self.first_mismatch
        }:
            raise ValueError("first_mismatch lacks recorded or replayed; verify the trace anew")

    @property
    def holds(self) -> bool:
        """Whether the replay gives all that was recorded."""
        return self.n_mismatched == self.n_passes_mismatched == 0

    @property
    def replayed(self) -> str:
        """What was replayed: ``lru at 3000 MiB``."""
        return f"{self.policy} at {round(self.budget_bytes / MIB, 4):.12g} MiB"

    @property
    def compared(self) -> str:
        """How much of what was compared differs: ``12 of 480 lookups (…)``."""
        if self.holds:
            parts = ((self.n_lookups, "lookups"), (self.n_passes, "passes"))
            compared = [f"none of {count} {name}" for count, name in parts if count]
            return " and ".join(compared or ["none of 0 lookups"])
        text = f"the counts of {self.n_passes_mismatched} of {self.n_passes} passes"
        if self.n_mismatched:
            text = f"{self.n_mismatched} of {self.n_lookups} lookups"
        if self.hits_recorded is None:
            return text
        return f"{text} ({self.hits_recorded} hits recorded, {self.hits_replayed} replayed)"

    def sentence(self, name: str) -> str:
        """Say of the trace `name` that a replay differs from its recording, and why."""
        reason = self.likely_reason or (
            "no other policy, budget or number of tokens a pass that was tried gives what was recorded"
        )
        return (
            f"{name}: a replay with {self.replayed} differs from the recording in {self.compared}; "
            f"{reason}."
        )
