"""A bound on the hits of every demand policy, for experts of any sizes."""

import numpy as np

from tracekit.policies.base import Batches, Limit, Policy, register
from tracekit.policies.belady import furthest_next_use
from tracekit.trace.schema import DECODE, PREFILL


@register
class Bound(Policy):
    """Proven limits: no demand policy that keeps to the budget has more hits or reads fewer bytes.

    A demand policy reads only what is looked up. With equal sizes Belady's rule has the most hits
    of all demand policies, and is the bound. With unequal sizes it is not: to evict the furthest
    next use can cost a small expert where evicting a large one would have made the room. The bound
    then comes from relaxations: two problems with equal sizes in which every feasible schedule
    stays feasible, so that Belady's optimum there is a bound here. A schedule is the sequence of
    sets that a policy leaves resident. Each set fits the budget, or is the last batch alone where
    that is larger.

    *Smallest size.* Give every expert the smallest size. The same sets fit, so hits are at most
    those of Belady's rule with every expert at the smallest size.

    *Single bytes.* Let every byte of an expert be evicted alone. The same sets can be left, and
    all bytes have one size. So at least as many bytes are read as by Belady's rule with divisible
    experts, and the bytes of all hits are at most the rest of what is looked up.

    *Both counts together.* The experts of one size alone have at most the hits that Belady's rule
    gives them with the whole budget to themselves, because a policy's sets without the other
    experts fit it too. The bytes of all hits are limited, and a hit of a small expert takes the
    fewest of them. So hits are at most the number that results if the smallest experts get all the
    hits they can have, then the next larger ones, until the bytes are used up. The bound is the
    lower one of this number and the first.

    The same number bounds the hits of decode batches, and so does the number of decode lookups
    whose key was looked up before. As for bytes, each key is read once at its size, and every
    other miss reads at least the smallest size. Decoding reads at least the bytes of the whole run
    less all bytes that the prefill looks up.
    """

    name = "bound"
    summary = "proven limit on the hits of every demand policy at this budget, whatever the sizes"
    offline = True
    gives_limits = True

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Limit]:
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
    cell, read_bytes = furthest_next_use(batches, budget, equal)
    most = int(cell.hits.sum())
    if len(sizes) < 2:
        return most, read_bytes
    _, least_read = furthest_next_use(batches, budget, expert_bytes, divisible=True)
    left = asked_bytes - least_read
    by_size = 0
    for size in sizes.tolist():
        cell, _ = furthest_next_use(batches, budget, expert_bytes, among=expert_bytes == size)
        taken = min(int(cell.hits.sum()), left // size)
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
