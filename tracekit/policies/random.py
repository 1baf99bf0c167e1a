"""Random replacement: what a rule must beat to be worth anything."""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import register
from tracekit.policies.fed import FedPolicy, KernelRun, Run
from tracekit.policies.model import Model


@dataclass(frozen=True)
class RandomParams:
    """Parameters of `Random`.

    Attributes
    ----------
    seed : int
        Seed of the draws, 0 or more. Every budget starts again from it.
    """

    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError("seed must be 0 or more")


@register
class Random(FedPolicy):
    """Evict a uniformly random entry that the batch did not touch; with ``--bypass`` any entry.

    The draws come from a generator written here (xorshift, G. Marsaglia, 2003), so a seed gives
    the same run on every platform.
    """

    name = "random"
    summary = "evicts a uniformly random expert"
    Params = RandomParams
    stochastic = True
    can_bypass = True
    params: RandomParams

    def start(self, model: Model, budgets: np.ndarray) -> Run:
        (seeded,) = np.random.SeedSequence(self.params.seed).generate_state(1, np.uint64)
        return KernelRun(
            budgets,
            _random,
            state=lambda: (
                np.empty(model.n_keys, np.int32),
                np.full(model.n_keys, -1, np.int32),
                np.array([seeded | np.uint64(1)]),  # the generator must not start at 0
                np.zeros(2, np.int64),
            ),
            inputs=lambda batches: (batches.keys, batches.batch_start, batches.key_bytes),
        )


# The residents are in one array in any order, except that the entries of the batch are at its end.
# A random victim is then a random place before them: the high half of the generator's state, times
# the number of such places, shifted down. An entry moves by a swap with the entry in its new place.
# With `bypass` every place may be drawn.
@kernel
def _random(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    entries: np.ndarray,
    place: np.ndarray,
    generator: np.ndarray,
    totals: np.ndarray,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    state = generator[0]
    n_entries, used = totals
    for b in range(batch_start.size - 1):
        start = batch_start[b]
        stop = batch_start[b + 1]
        n_free = n_entries
        for p in range(start, stop):
            key = keys[p]
            if hit.size:
                hit[p] = place[key] >= 0
            if place[key] >= 0:
                n_free -= 1
                other = entries[n_free]
                entries[place[key]] = other
                place[other] = place[key]
                entries[n_free] = key
                place[key] = n_free
        n_hits = n_entries - n_free
        for p in range(start, stop):
            key = keys[p]
            if place[key] < 0:
                entries[n_entries] = key
                place[key] = n_entries
                n_entries += 1
                used += key_bytes[key]
        if bypass:
            n_free = n_entries

        while used > budget and n_free > 0:
            state ^= state << np.uint64(13)
            state ^= state >> np.uint64(7)
            state ^= state << np.uint64(17)
            drawn = np.int64(((state >> np.uint64(32)) * np.uint64(n_free)) >> np.uint64(32))
            key = entries[drawn]
            place[key] = -1
            used -= key_bytes[key]
            n_free -= 1
            n_entries -= 1
            if drawn < n_free:
                entries[drawn] = entries[n_free]
                place[entries[drawn]] = drawn
            if n_free < n_entries:
                entries[n_free] = entries[n_entries]
                place[entries[n_free]] = n_free
        hits[b] = n_hits
        resident[b] = used
    generator[0] = state
    totals[0], totals[1] = n_entries, used
