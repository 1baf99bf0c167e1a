"""ARC: what was used once and what was used again in two lists, with shares that adapt."""

from collections.abc import Sequence

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, StateArray, register
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.recency import append, empty_lists, pop_cold, unlink

# T1 and T2 hold residents, B1 and B2 remember what left them.
_T1, _T2, _B1, _B2, _NOWHERE = 0, 1, 2, 3, 4


@register
class ARC(Policy):
    """Adaptive Replacement Cache (N. Megiddo and D. S. Modha, FAST 2003).

    Two lists in the order of last touch hold the residents: T1 those that were used once since
    they came, T2 those that were used again. Two more, B1 and B2, remember the keys that were
    evicted from each. An expert that comes back out of B1 shows that T1 was too small, and one out
    of B2 that T2 was: the target for the size of T1 moves by the ratio of the other list of the
    two to its own, at least by one expert. The victim is the oldest of T1 if T1 is above its
    target, else the oldest of T2.

    All sizes are in bytes, also the target, the budget c that T1 and B1 keep to, and the 2 c that
    the four lists keep to. At equal sizes this is the paper's rule. An expert moves the target by
    its own bytes.

    The paper makes room for one request at a time, before it puts in what was asked for. Here a
    batch is looked up as a whole and moves the target request by request, in the order of last
    touch. Then room is made for all of it, while its experts are in none of the lists. Where T1 is
    exactly at its target the paper looks at the request in hand: here, at the last miss of the
    batch. With ``--bypass`` the experts of the batch are in their lists before room is made.
    """

    name = "arc"
    summary = "ARC: experts used once and used again in two lists, whose shares adapt"
    can_bypass = True

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        keys = n_layers * n_expert
        return (
            StateArray(
                "ghosts", "L × E", 4 * keys, "the lists B1 and B2: keys of what was evicted"
            ),
        )

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        return cells_of_kernel(
            batches,
            budgets,
            per_lookup,
            _arc,
            batches.keys,
            batches.batch_start,
            batches.key_bytes,
        )


# The four lists share their links, and `place` says in which one a key is. The batch's keys are out
# of the lists during the eviction, which protects them. Oldest ghosts are forgotten after the batch
# is in its lists; at equal sizes and one request a batch these are the ones that the paper deletes
# before the request is put in.
@kernel
def _arc(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    head = key_bytes.size  # the list L has its sentinel at head + L
    after, before = empty_lists(head + 4)
    place = np.full(head, _NOWHERE, np.int8)
    size = np.zeros(4, np.int64)
    target = 0.0
    used = np.int64(0)
    for b in range(batch_start.size - 1):
        n_hits = np.int64(0)
        last_miss_of_b2 = False
        for p in range(batch_start[b], batch_start[b + 1]):
            key = keys[p]
            listed = place[key]
            n_bytes = key_bytes[key]
            is_hit = listed <= _T2
            if hit.size:
                hit[p] = is_hit
            if is_hit:
                n_hits += 1
            else:
                used += n_bytes
                last_miss_of_b2 = listed == _B2
                if listed == _B1:
                    target += n_bytes * max(size[_B2] / size[_B1], 1.0)
                    target = min(target, float(budget))
                elif listed == _B2:
                    target -= n_bytes * max(size[_B1] / size[_B2], 1.0)
                    target = max(target, 0.0)
            if listed == _NOWHERE:
                place[key] = _T1
            else:
                unlink(after, before, key)
                size[listed] -= n_bytes
                place[key] = _T2

        for late in range(2):
            if (late == 0) == bypass:
                for p in range(batch_start[b], batch_start[b + 1]):
                    key = keys[p]
                    append(after, before, head + place[key], key)
                    size[place[key]] += key_bytes[key]
                continue
            while used > budget and size[_T1] + size[_T2] > 0:
                above = size[_T1] > target or (last_miss_of_b2 and size[_T1] == target)
                listed = _T1 if size[_T2] == 0 or (above and size[_T1] > 0) else _T2
                key = pop_cold(after, before, head + listed)
                append(after, before, head + listed + 2, key)
                place[key] = listed + 2
                size[listed] -= key_bytes[key]
                size[listed + 2] += key_bytes[key]
                used -= key_bytes[key]

        while size[_B1] > 0 and size[_T1] + size[_B1] > budget:
            key = pop_cold(after, before, head + _B1)
            place[key] = _NOWHERE
            size[_B1] -= key_bytes[key]
        while size[_B2] > 0 and size[_T1] + size[_T2] + size[_B1] + size[_B2] > 2 * budget:
            key = pop_cold(after, before, head + _B2)
            place[key] = _NOWHERE
            size[_B2] -= key_bytes[key]
        hits[b] = n_hits
        resident[b] = used
