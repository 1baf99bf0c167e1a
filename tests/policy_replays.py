"""What every policy did in the same drawn runs, for the tests that hold whatever its rule is.

Simulating each policy once on each run is fast. A policy that heeds `Batches.bypass` runs on half of
them a second time, with it.
"""

import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
from cache_runs import EXAMPLES, Case, cases
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tracekit.policies import POLICIES, Batches, Cell, Policy, load_policy

sys.path.append(str(Path(__file__).parent / "examples"))
REGISTERED = [cls.name for cls in POLICIES]
EVERY = [*REGISTERED, "own_ring:OwnRing"]
CELLS = [spec for spec in EVERY if not POLICIES.find(spec).gives_limits]
# The default of fewer-experts leaves nothing of a top-1 routing.
PARAMS = {"fewer-experts": {"keep": 1}}


@dataclass(frozen=True)
class Replay:
    """What a policy did in one case, at each of its budgets."""

    policy: Policy
    case: Case
    cells: list

    @property
    def batches(self) -> Batches:
        return self.case.batches

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of one expert of each batch."""
        return self.batches.expert_bytes[self.batches.layer]

    def in_hand(self, cell: Cell) -> np.ndarray:
        """Bytes of each batch that may not be evicted after it."""
        return self.lookups(cell) * self.sizes * (not self.batches.bypass)

    def lookups(self, cell: Cell) -> np.ndarray:
        return self.batches.lookups if cell.lookups is None else cell.lookups

    def read(self, cell: Cell) -> np.ndarray:
        missed = (self.lookups(cell) - cell.hits) * self.sizes
        return missed if cell.read_bytes is None else cell.read_bytes

    def evicted(self, cell: Cell) -> np.ndarray:
        """Bytes evicted after each batch: what was read and is not there."""
        return self.read(cell) - np.diff(cell.resident_bytes, prepend=0)


@cache
def drawn_cases() -> list[Case]:
    """Draw the cases that all tests share, none of them with bypass."""
    found = []

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, phases=[Phase.generate])
    @given(case=st.one_of(cases(False), cases(False, equal_sizes=True)))
    def collect(case):
        found.append(case)

    collect()
    return found


@cache
def replays(spec: str) -> list[Replay]:
    policy = load_policy(spec, PARAMS.get(spec))
    chosen = list(drawn_cases())
    if policy.can_bypass:
        chosen += [replace(case, bypass=True) for case in chosen[::2]]
    return [
        Replay(policy, case, policy.simulate(case.batches, np.array(case.budgets), per_lookup=True))
        for case in chosen
    ]


def each_cell(spec):
    """Yield (replay, cell) of each case and budget."""
    for replay in replays(spec):
        for cell in replay.cells:
            yield replay, cell


def in_layers(replay: Replay, cell: Cell):
    """Yield (resident, evicted, limit, sizes, bytes in hand) of every batch, in its own layer."""
    n_layers = len(replay.batches.expert_bytes)
    held = [0] * n_layers
    evicted = replay.evicted(cell).tolist()
    steps = np.diff(cell.resident_bytes, prepend=0).tolist()
    for b, layer in enumerate(replay.batches.layer.tolist()):
        held[layer] += steps[b]
        in_hand = int(replay.in_hand(cell)[b])
        limit = cell.budget_bytes // n_layers
        yield held[layer], evicted[b], limit, [int(replay.sizes[b])], in_hand


def in_all(replay: Replay, cell: Cell):
    """Yield the same of every batch, in the whole cache."""
    sizes = replay.batches.expert_bytes.tolist()
    columns = cell.resident_bytes, replay.evicted(cell), replay.in_hand(cell)
    for resident, evicted, in_hand in zip(*(c.tolist() for c in columns), strict=True):
        yield resident, evicted, cell.budget_bytes, sizes, in_hand
