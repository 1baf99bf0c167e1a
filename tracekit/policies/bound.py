"""A bound on the hits of every demand policy, for experts of any sizes."""

import numpy as np

from tracekit.policies.base import Batches, Limit, Policy, register
from tracekit.policies.belady import furthest_next_use
from tracekit.trace.schema import DECODE, PREFILL


@register
class Bound(Policy):
    """More hits than this, or fewer bytes read, no demand policy has that keeps to the budget.

    With all sizes equal Belady's rule has the most hits of all, and is the bound. With sizes that
    differ it is not one: to go for the furthest next use can cost a small expert where a large one
    would have made the room. What holds then follows from two worlds in which sizes are equal, and
    in which everything is possible that is possible in the real one, so that Belady's optimum there
    is no less than anything here. Take the sets that a policy leaves resident: each fits the
    budget, or is the last batch where that alone is larger.

    *Smallest size.* If no expert is larger than the smallest one, the same sets fit. So hits are at
    most Belady's with every expert at the smallest size.

    *Single bytes.* If every byte of an expert can be evicted alone, the same sets are among those
    that can be left, and bytes all have one size. So at least as many bytes are read as by Belady's
    rule with divisible experts, and the bytes of all hits are at most the rest.

    *Both ways to count.* Experts of one size alone have at most the hits that Belady's rule gives
    them with the whole budget to themselves: the sets of a policy, without the other experts, fit
    it too. The bytes of the hits are bounded, and a hit of a small expert takes fewest of them; so
    hits are at most as many as come out if the smallest experts get all the hits they can have,
    then the next larger, until the bytes are spent. The bound is the lower of this and the first.

    Of the hits of decode batches the same number is a bound, and so is the number of decode lookups
    whose key was looked up before. Whatever is read, each key is read once at its size and every
    other miss reads the smallest size; decoding reads no less than all that is read less all that
    the prefill asks for.
    """

    name = "bound"
    summary = "more hits than this no demand policy can have at this budget, whatever the sizes"
    offline = True

    def simulate(self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False):
        """See `Policy.simulate`."""
        asked = _by_phase_and_layer(batches, batches.lookups)
        first = _by_phase_and_layer(batches, _first_lookups(batches))
        repeats = (asked - first).sum(axis=1)
        first_bytes = first @ batches.expert_bytes
        asked_bytes = asked @ batches.expert_bytes
        smallest = int(batches.expert_bytes.min(initial=np.iinfo(np.int64).max))
        limits = []
        for budget in budgets.tolist():
            hits, least_read = _most_hits(batches, budget, int(asked_bytes.sum()))
            hits_decode = min(hits, int(repeats[DECODE]))
            read = int(first_bytes.sum()) + (int(repeats.sum()) - hits) * smallest
            read_decode = int(first_bytes[DECODE]) + (int(repeats[DECODE]) - hits_decode) * smallest
            limits.append(
                Limit(
                    budget_bytes=budget,
                    hits=hits,
                    hits_decode=hits_decode,
                    read_bytes=max(read, least_read),
                    read_bytes_decode=max(read_decode, least_read - int(asked_bytes[PREFILL])),
                )
            )
        return limits


def _most_hits(batches: Batches, budget: int, asked_bytes: int) -> tuple[int, int]:
    """Return a bound on the hits and one on the bytes read, as `Bound` explains.

    `asked_bytes` are the bytes of all lookups.
    """
    expert_bytes = batches.expert_bytes
    sizes = np.unique(expert_bytes)
    equal = np.repeat(sizes[:1], len(expert_bytes))
    hits, _, read_bytes = furthest_next_use(batches, budget, equal)
    most = int(hits.sum())
    if len(sizes) < 2:
        return most, read_bytes
    _, _, least_read = furthest_next_use(batches, budget, expert_bytes, divisible=True)
    left = asked_bytes - least_read
    by_size = 0
    for size in sizes.tolist():
        hits, _, _ = furthest_next_use(batches, budget, expert_bytes, among=expert_bytes == size)
        taken = min(int(hits.sum()), left // size)
        by_size += taken
        left -= taken * size
    return min(most, by_size), least_read


def _first_lookups(batches: Batches) -> np.ndarray:
    """Count the keys of each batch that were never looked up before, int64 [B]."""
    is_first = np.ones(len(batches.keys) + 1, np.bool_)
    is_first[batches.next_use] = False
    batch = np.searchsorted(batches.batch_start, np.flatnonzero(is_first[:-1]), side="right") - 1
    return np.bincount(batch, minlength=len(batches))


def _by_phase_and_layer(batches: Batches, per_batch: np.ndarray) -> np.ndarray:
    """Add up `per_batch` (int [B]) by phase and layer, int64 [2, L]."""
    n_layers = len(batches.expert_bytes)
    group = batches.phase.astype(np.int64) * n_layers + batches.layer
    # Sums in float64 are exact below 2^53.
    sums = np.bincount(group, per_batch, 2 * n_layers)
    return sums.astype(np.int64).reshape(2, n_layers)
