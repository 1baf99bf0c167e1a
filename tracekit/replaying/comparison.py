"""A replay beside what the engine recorded: lookup by lookup, and pass by pass.

In: a trace that carries residency, or the engine's own counts, and a run of a policy. Out: where the
run differs. Nothing here knows why, or what to say of it.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.policies import Batches, Cell, Policy
from tracekit.replaying.answer_checks import simulate
from tracekit.replaying.reads import reads_of
from tracekit.replaying.slots import states_of_lookups
from tracekit.routing.residency import UNKNOWN, recorded_states
from tracekit.trace import Trace
from tracekit.trace.schema import MISS

COUNTS = ("lookups", "hits", "read_bytes")


@dataclass(frozen=True, eq=False)
class Recorded:
    """What the engine recorded of a run.

    Attributes
    ----------
    lookups : int64 [M]
        Which lookups of the run's batches have a residency.
    resident : bool [M]
        Whether the engine found the expert resident; a prefetched one is.
    passes : int32 [P]
        The passes that have a count.
    counts : mapping of str to int64 [P]
        Of each pass `lookups`, `hits`, `read_bytes`; -1 where unknown.
    """

    lookups: np.ndarray
    resident: np.ndarray
    passes: np.ndarray
    counts: dict[str, np.ndarray]

    @property
    def hits(self) -> int | None:
        """Hits of the lookups; of the passes without residency; None if no hit was recorded."""
        if len(self.lookups):
            return int(np.count_nonzero(self.resident))
        hits = self.counts["hits"]
        return int(hits[hits >= 0].sum()) if (hits >= 0).any() else None


@dataclass(frozen=True, eq=False)
class Compared:
    """Where a run differs from what was recorded.

    Attributes
    ----------
    lookups, passes : int64
        Which of `Recorded.lookups` and of `Recorded.passes` differ.
    hits : int
        Hits of the run among what was recorded.
    counts : mapping of str to int64 [P]
        The counts of the run in the recorded passes.
    """

    lookups: np.ndarray
    passes: np.ndarray
    hits: int
    counts: dict[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.lookups) + len(self.passes)


def recorded_of(trace: Trace, batches: Batches, counted: Trace | None = None) -> Recorded:
    """Read what the engine of `trace` recorded, for the lookups of its `batches`.

    Parameters
    ----------
    trace : Trace
    batches : Batches
    counted : Trace, optional
        Where to read the engine's counts, if not in `trace` itself.
    """
    known, resident = np.empty(0, np.int64), np.empty(0, np.bool_)
    if trace.has("residency"):
        states = states_of_lookups(trace, batches, recorded_states(trace))
        known = np.flatnonzero(states != UNKNOWN)
        resident = states[known] != MISS
    passes, counts = _counts(counted or trace)
    return Recorded(known, resident, passes, counts)


def _counts(trace: Trace) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the passes that have a count, and the counts of each; bytes only of our own engine.

    Other engines count the pages that they read, which are more than the experts have.
    """
    names = [name for name in COUNTS if trace.has_steps(name)]
    if not is_own(trace):
        names = [name for name in names if name != "read_bytes"]
    if not names:
        return np.empty(0, np.int32), {name: np.empty(0, np.int64) for name in COUNTS}
    steps = trace.steps(["pass", *names])
    passes, at = np.unique(steps["pass"], return_inverse=True)
    counts = {name: np.full(len(passes), -1, np.int64) for name in COUNTS}
    for name in names:
        known = steps[name] >= 0
        counts[name][at[known]] = 0
        np.add.at(counts[name], at[known], steps[name][known].astype(np.int64))
    has_one = np.any([counts[name] >= 0 for name in names], axis=0)
    return passes[has_one], {name: values[has_one] for name, values in counts.items()}


def compare(recorded: Recorded, batches: Batches, cell: Cell, origin: np.ndarray) -> Compared:
    """Compare a run with what was recorded.

    Parameters
    ----------
    recorded : Recorded
    batches : Batches
    cell : Cell
        With ``hit``.
    origin : int32 [B]
        The recorded pass that each batch belongs to.
    """
    assert cell.hit is not None, "the policy was asked for each lookup"
    found = cell.hit[recorded.lookups]
    reads = reads_of(batches, cell)
    of_batch = {"lookups": reads.lookups, "hits": cell.hits, "read_bytes": reads.read_bytes}
    at = np.searchsorted(recorded.passes, origin)
    at[at == len(recorded.passes)] = 0
    is_counted = np.zeros(len(origin), np.bool_)
    if len(recorded.passes):
        is_counted = recorded.passes[at] == origin
    counts, differs = {}, np.zeros(len(recorded.passes), np.bool_)
    for name, values in of_batch.items():
        counts[name] = np.zeros(len(recorded.passes), np.int64)
        np.add.at(counts[name], at[is_counted], values[is_counted].astype(np.int64))
        differs |= (recorded.counts[name] >= 0) & (counts[name] != recorded.counts[name])
    hits = int(np.count_nonzero(found))
    if not len(recorded.lookups):
        hits = int(counts["hits"][recorded.counts["hits"] >= 0].sum())
    return Compared(
        np.flatnonzero(found != recorded.resident), np.flatnonzero(differs), hits, counts
    )


def is_own(trace: Trace) -> bool:
    """Say whether tracekit's own engine recorded the trace."""
    engine = trace.facts.engine
    return trace.facts.source == "recorded" and engine is not None and engine.name == "tracekit"


def is_plain(policy: type[Policy]) -> bool:
    """Say whether an engine could have had this policy without more than it sees itself."""
    unlike = (
        "offline",
        "stochastic",
        "needs_predictor",
        "needs_popularity",
        "speculative",
        "lossy",
    )
    if policy.gives_limits:
        return False
    return not any(getattr(policy, flag) for flag in unlike)


def run(policy: Policy, batches: Batches, budgets: list[int]) -> list[Cell]:
    """Replay `batches` at each of `budgets`, with the answer to each lookup."""
    cells = simulate(policy, batches, np.array(budgets, np.int64), per_lookup=True)
    return [cell for cell in cells if isinstance(cell, Cell)]
