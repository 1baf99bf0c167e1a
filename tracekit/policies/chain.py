"""Belady's rule at every budget in one pass, where all experts have one size.

A larger cache then keeps all that a smaller one keeps. So the caches form a chain of groups: group 0
is what the smallest cache keeps, and each other group what its cache keeps beyond the next smaller
one. What has to leave a cache goes on to the next group.

They are kept intervals, as in `tracekit.policies.intervals`. Nothing here knows a policy.
"""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.batches import Batches
from tracekit.policies.positions import add, discard, largest, set_of

# A budget takes a bit for each lookup. So many bytes at a time, and at most so many groups.
_BYTES_A_PASS = 128 << 20
_MOST_GROUPS = 255


def kept_at(batches: Batches, next_use: np.ndarray, budgets: np.ndarray) -> np.ndarray:
    """Return how many of the intervals of `next_use` are kept at each of `budgets`.

    Parameters
    ----------
    batches : Batches
        A whole run. Its experts have one size.
    next_use : int32 [N]
        As in `tracekit.policies.intervals.Room`.
    budgets : int64 [C]
        In bytes.

    Returns
    -------
    int64 [C, 3, L]
        By the kind of the batch that ends them (`Batches.kind`) and its layer.
    """
    size = max(1, int(batches.expert_bytes.max(initial=0)))
    capacity, place = np.unique(budgets // size, return_inverse=True)

    def make() -> np.ndarray:
        return _in_parts(batches, next_use, capacity)

    is_shared = next_use is batches.next_use  # `belady` and `bound` ask for the same pass
    kept = batches.passes.once(capacity, make) if is_shared else make()
    return np.asarray(kept[place])


def _in_parts(batches: Batches, next_use: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Return the same at as many experts as `capacity` says, ascending and each number once."""
    bytes_a_budget = len(next_use) // 8 + 1
    most = min(max(1, _BYTES_A_PASS // bytes_a_budget), _MOST_GROUPS)
    parts = np.array_split(capacity, max(1, -(-len(capacity) // most)))
    return np.concatenate([_kept(batches, next_use, part) for part in parts])


def _kept(batches: Batches, next_use: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """Return the same, in one pass."""
    n_groups = len(capacity)
    bits, words, groups = (
        np.zeros((n_groups, len(level)), np.uint64)
        for level in set_of(np.empty(0, np.int64), len(next_use))
    )
    found = np.zeros((3, len(batches.expert_bytes), n_groups + 1), np.int64)
    _chain(
        batches.batch_start,
        batches.layer,
        batches.kind,
        next_use,
        capacity,
        batches.bypass,
        np.full(len(next_use), n_groups, np.uint8),
        bits,
        words,
        groups,
        np.zeros(n_groups, np.int64),
        np.zeros(n_groups, np.int64),
        np.empty((2, batches.n_keys), np.int64),
        found,
    )
    return np.moveaxis(found.cumsum(axis=2)[:, :, :-1], 2, 0)


# The waiting intervals of each group are a set of numbers, the positions of the lookups that close
# them, and `group_of` says for each position in which group it waits, or that it waits in none.
# Positions that have passed can stay in a set, because they are smaller than all that are to come.
#
# What goes on to the next group does so in descending order. It stays in that group, or goes on in
# place of what ends there still later. No group can be over its share if those before it are not
# full: so the walk ends there, unless the batch alone leaves no room in the smallest caches.
@kernel
def _chain(
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    kind: np.ndarray,
    next_use: np.ndarray,
    capacity: np.ndarray,
    bypass: bool,
    group_of: np.ndarray,
    bits: np.ndarray,
    words: np.ndarray,
    groups: np.ndarray,
    top: np.ndarray,
    waiting: np.ndarray,
    moved: np.ndarray,
    found: np.ndarray,
) -> None:
    n_positions = next_use.size
    n_groups = np.int64(capacity.size)
    for b in range(batch_layer.size):
        start, stop = batch_start[b], batch_start[b + 1]
        for p in range(start, stop):
            waited_in = np.int64(group_of[p])
            found[kind[b], batch_layer[b], waited_in] += 1
            if waited_in < n_groups:
                waiting[waited_in] -= 1
        own = np.int64(0) if bypass else stop - start
        for late in range(2):
            if (late == 0) == bypass:
                for p in range(start, stop):
                    closes = np.int64(next_use[p])
                    if closes < n_positions:
                        add(bits[0], words[0], groups[0], closes)
                        top[0] = max(top[0], closes >> 18)
                        group_of[closes] = 0
                        waiting[0] += 1
                continue
            n_coming = np.int64(0)
            coming = np.int64(0)  # the row of `moved` that holds them
            smaller = np.int64(0)  # room in the next smaller cache
            for g in range(n_groups):
                room = np.int64(max(capacity[g] - own, 0))
                excess = waiting[g] + n_coming - (room - smaller)
                smaller = room
                n_going = np.int64(0)
                i = np.int64(0)  # the next that comes
                if excess > 0:
                    last = np.int64(-1)
                    is_known = False
                    while n_going < excess:
                        if not is_known:
                            last = np.int64(-1)
                            if waiting[g] > 0:
                                while groups[g, top[g]] == 0:
                                    top[g] -= 1
                                last = largest(bits[g], words[g], groups[g], top[g])
                            is_known = True
                        if i < n_coming and moved[coming, i] > last:
                            moved[1 - coming, n_going] = moved[coming, i]
                            i += 1
                        else:
                            moved[1 - coming, n_going] = last
                            discard(bits[g], words[g], groups[g], last)
                            waiting[g] -= 1
                            is_known = False
                        n_going += 1
                while i < n_coming:
                    closes = moved[coming, i]
                    add(bits[g], words[g], groups[g], closes)
                    top[g] = max(top[g], closes >> 18)
                    group_of[closes] = g
                    waiting[g] += 1
                    i += 1
                coming = np.int64(1 - coming)
                n_coming = n_going
                if excess <= 0 and room > 0:
                    break
            for closes in moved[coming, :n_coming]:
                group_of[closes] = n_groups
