"""Policies replayed on the same batches, their decode hits counted in the units that a bootstrap draws."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tracekit.policies import Batches, Cell, Policy, load_policy
from tracekit.replaying import build_batches, inputs_of, simulate
from tracekit.replaying.inputs import Kept, Shared, shared_guesses
from tracekit.routing.cut import cut_pass
from tracekit.routing.turns import DecodedTurns
from tracekit.stats.bootstrap import Bootstrap
from tracekit.stats.units import Units
from tracekit.trace import Trace, UsageError
from tracekit.trace.schema import DECODE


@dataclass(frozen=True, eq=False)
class PairedRuns:
    """A run that several policies are replayed on.

    Attributes
    ----------
    trace : Trace
    batches : Batches
    decode : bool [B]
        The batches of decoded tokens, without a pass that the recording cut.
    bootstrap : Bootstrap
        It draws the same units for every policy.
    """

    trace: Trace
    batches: Batches
    decode: np.ndarray
    bootstrap: Bootstrap
    _unit: np.ndarray  # int64, of each of the decode batches
    _n_units: int
    _shared: Shared = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, bypass: bool = False, seed: int = 0) -> "PairedRuns":
        """Prepare a trace.

        Raises
        ------
        TraceError
            There is no decoded token.
        """
        DecodedTurns.of(trace)  # says what to do if nothing was decoded
        batches = build_batches(trace, bypass=bypass, equal_sizes=True)
        decode = (batches.phase == DECODE) & (batches.pass_id != cut_pass(trace))
        # Drafted tokens that one pass verifies have their lookups together: what is drawn are passes.
        n_layers = len(batches.expert_bytes)
        turns, n_passes = np.unique(batches.turn[decode][::n_layers], return_counts=True)
        units = Units.of(turns, n_passes)
        unit = np.repeat(units.of_tokens(n_passes), n_layers)
        return cls(trace, batches, decode, Bootstrap(units.turn, seed), unit, len(units))

    def prepare(self, policies: Sequence[str | Policy], kept: Kept | None = None) -> None:
        """Find what predictors guess for all of `policies` at once; see `shared_guesses`."""
        loaded = [load_policy(each) if isinstance(each, str) else each for each in policies]
        self._shared.update(shared_guesses(loaded, self.trace, self.batches, kept=kept))

    def by_unit(self, per_batch: np.ndarray) -> np.ndarray:
        """Return the sums of `per_batch` [B] over the decode batches of each unit, int64 [U]."""
        sums = np.bincount(self._unit, per_batch[self.decode], self._n_units)
        return np.asarray(sums.astype(np.int64))

    def cells(self, chosen: str | Policy, budgets: np.ndarray) -> tuple[Policy, list[Cell]]:
        """Replay a policy at `budgets` (int64 [C], bytes); return it and C cells.

        Raises
        ------
        UsageError
            Its hits are not of the same lookups as those of other policies, or not its own.
        MissingDataError
            The trace lacks what it needs.
        """
        policy = load_policy(chosen) if isinstance(chosen, str) else chosen
        inputs = inputs_of(policy, self.trace, self.batches, shared=self._shared)
        found = [] if policy.lossy else simulate(policy, inputs, budgets)
        cells = [cell for cell in found if isinstance(cell, Cell)]
        if len(cells) != len(budgets):
            raise UsageError(
                f"{policy.name} cannot be compared lookup by lookup; take a policy that looks up "
                "every expert and has hits of its own."
            )
        return policy, cells
