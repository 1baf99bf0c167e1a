"""Belady's rule: evict what will be wanted last."""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register


@register
class Belady(Policy):
    """Evict the entry whose next use is furthest away (L. A. Belady, 1966).

    An entry that is never used again goes first, the oldest admitted of them before the others. At
    equal sizes no schedule has more hits; with sizes that differ it is a heuristic, see `bound`.
    """

    name = "belady"
    summary = (
        "evicts what is used again furthest in the future (the optimum if all sizes are equal)"
    )
    offline = True

    def simulate(self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False):
        """See `Policy.simulate`."""
        cells = []
        for budget in budgets.tolist():
            hit = np.empty(len(batches.keys) if per_lookup else 0, np.bool_)
            hits, resident, _ = furthest_next_use(batches, budget, batches.expert_bytes, hit=hit)
            cells.append(Cell(budget, hits, resident, hit=hit if per_lookup else None))
        return cells


def furthest_next_use(
    batches: Batches,
    budget: int,
    expert_bytes: np.ndarray,
    divisible: bool = False,
    among: np.ndarray | None = None,
    hit: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Replay Belady's rule at one budget.

    Parameters
    ----------
    batches : Batches
    budget : int
        Bytes.
    expert_bytes : int64 [L]
        Sizes of the experts, in place of their own.
    divisible : bool
        Evict no more of an expert than has to go; what is gone of it is read when it is wanted.
    among : bool [L], optional
        Layers to replay; as if the model had no others.
    hit : bool [N], optional
        Filled with whether each lookup hit.

    Returns
    -------
    hits : int32 [B]
        Hits of each batch; of divisible experts, lookups that found at least a part.
    resident : int64 [B]
        Resident bytes after each batch's eviction.
    read_bytes : int
        Bytes read in all.
    """
    hits = np.empty(len(batches), np.int32)
    resident = np.empty(len(batches), np.int64)
    read_bytes = _belady(
        batches.keys,
        batches.admit_rank,
        batches.batch_start,
        batches.layer,
        np.ones(len(expert_bytes), np.bool_) if among is None else among,
        batches.next_use,
        batches.layer_of_lookup,
        expert_bytes,
        batches.n_expert,
        budget,
        divisible,
        hits,
        resident,
        np.empty(0, np.bool_) if hit is None else hit,
    )
    return hits, resident, read_bytes


# The resident entries are a set of numbers: the positions in the trace of their next use. A lookup
# hits if its own position is in the set; the entry to evict is the largest of the set; after the
# eviction the batch's own next uses come in. Positions that have passed need not be taken out:
# they are smaller than all that wait.
#
# The set is a bitset of three levels, a bit of `words` for each word of `bits` that is not empty
# and a bit of `groups` for each such word of `words`. Within a word high positions are low bits:
# the lowest set bit is then the largest position, and its remainder modulo 67, which differs for
# all 64 bits, tells which one it is.
#
# Of a divisible expert the last one evicted may leave only in part: `gone` are its missing bytes.
@kernel
def _belady(
    keys,
    admit_rank,
    batch_start,
    batch_layer,
    among,
    next_use,
    layer_of_lookup,
    expert_bytes,
    n_expert,
    budget,
    divisible,
    hits,
    resident,
    hit,
):
    one = np.uint64(1)
    place = np.zeros(67, np.int64)
    for i in range(64):
        place[(one << np.uint64(i)) % np.uint64(67)] = 63 - i

    n_positions = keys.size
    bits = np.zeros((n_positions >> 6) + 1, np.uint64)
    words = np.zeros((n_positions >> 12) + 1, np.uint64)
    groups = np.zeros((n_positions >> 18) + 1, np.uint64)
    top = np.int64(0)  # no group after this one holds anything
    waiting = np.int64(0)  # entries in the set whose position has not passed
    admitted = np.zeros(expert_bytes.size * n_expert, np.int64)  # when each resident key came in
    finished = np.empty(expert_bytes.size * n_expert, np.int32)  # residents without a next use
    n_finished = np.int64(0)
    gone = np.zeros(admitted.size if divisible else 0, np.int64)
    used = np.int64(0)
    read_bytes = np.int64(0)
    for b in range(batch_start.size - 1):
        start = batch_start[b]
        stop = batch_start[b + 1]
        n_hits = np.int64(0)
        missing = np.int64(0)
        if not among[batch_layer[b]]:
            hits[b] = 0
            resident[b] = used
            continue
        for p in range(start, stop):
            is_hit = (bits[p >> 6] >> np.uint64(63 - (p & 63))) & one
            n_hits += np.int64(is_hit)
            if not is_hit:
                admitted[keys[p]] = start + admit_rank[p]
            elif divisible:
                missing += gone[keys[p]]
                gone[keys[p]] = 0
            if hit.size:
                hit[p] = is_hit
        waiting -= n_hits
        missing += (stop - start - n_hits) * expert_bytes[batch_layer[b]]
        used += missing
        read_bytes += missing

        while used > budget and n_finished > 0:
            oldest = 0
            for i in range(1, n_finished):
                if admitted[finished[i]] < admitted[finished[oldest]]:
                    oldest = i
            used -= expert_bytes[finished[oldest] // n_expert]
            n_finished -= 1
            finished[oldest] = finished[n_finished]
        while used > budget and waiting > 0:
            while groups[top] == 0:
                top -= 1
            lowest = groups[top] & (~groups[top] + one)
            g = (top << 6) + place[lowest % np.uint64(67)]
            lowest = words[g] & (~words[g] + one)
            w = (g << 6) + place[lowest % np.uint64(67)]
            lowest = bits[w] & (~bits[w] + one)
            p = (w << 6) + place[lowest % np.uint64(67)]
            size = expert_bytes[layer_of_lookup[p]]
            if divisible:
                size -= gone[keys[p]]
                if size > used - budget:
                    gone[keys[p]] += used - budget
                    used = budget
                    break
                gone[keys[p]] = 0
            used -= size
            waiting -= 1
            bits[w] ^= lowest
            if bits[w] == 0:
                words[g] ^= one << np.uint64(63 - (w & 63))
                if words[g] == 0:
                    groups[top] ^= one << np.uint64(63 - (g & 63))

        for p in range(start, stop):
            q = np.int64(next_use[p])
            if q == n_positions:
                finished[n_finished] = keys[p]
                n_finished += 1
                continue
            waiting += 1
            w = q >> 6
            if bits[w] == 0:
                words[w >> 6] |= one << np.uint64(63 - (w & 63))
                groups[w >> 12] |= one << np.uint64(63 - ((w >> 6) & 63))
                top = max(top, w >> 12)
            bits[w] |= one << np.uint64(63 - (q & 63))
        hits[b] = n_hits
        resident[b] = used
    return read_bytes
