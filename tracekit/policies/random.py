"""Random replacement: the floor that a rule must beat."""

from dataclasses import dataclass

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register


@dataclass(frozen=True)
class RandomParams:
    """Parameters of `Random`.

    Attributes
    ----------
    seed : int
        Seed of the draws, 0 or more. Every budget starts from it anew.
    """

    seed: int = 0

    def __post_init__(self):
        if self.seed < 0:
            raise ValueError("seed must be 0 or more")


@register
class Random(Policy):
    """Evict a uniformly random entry that the batch did not touch.

    The draws come from a generator of its own (xorshift, G. Marsaglia, 2003), so a seed gives the
    same run on every platform.
    """

    name = "random"
    summary = "evicts a uniformly random expert"
    Params = RandomParams
    stochastic = True

    def simulate(self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False):
        """See `Policy.simulate`."""
        (state,) = np.random.SeedSequence(self.params.seed).generate_state(1, np.uint64)
        cells = []
        for budget in budgets:
            hits = np.empty(len(batches), np.int32)
            resident = np.empty(len(batches), np.int64)
            hit = np.empty(len(batches.keys) if per_lookup else 0, np.bool_)
            _random(
                batches.keys,
                batches.batch_start,
                batches.key_bytes,
                int(budget),
                state | np.uint64(1),  # the generator must not start at 0
                hits,
                resident,
                hit,
            )
            cells.append(Cell(int(budget), hits, resident, hit=hit if per_lookup else None))
        return cells


# The residents stand in an array in any order, those that the batch touched at its end, so a draw
# among the others is a draw of a place. An entry is moved by swapping it with the one whose place
# it takes. The high half of the generator's state times the number of places gives the draw.
@kernel
def _random(keys, batch_start, key_bytes, budget, state, hits, resident, hit):
    entries = np.empty(key_bytes.size, np.int32)
    place = np.full(key_bytes.size, -1, np.int32)
    n_entries = np.int64(0)
    used = np.int64(0)
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
