"""Belady's rule: evict the entry whose next use is furthest away."""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register
from tracekit.policies.cells import cells_of


@register
class Belady(Policy):
    """Evict the entry whose next use is furthest away (L. A. Belady, 1966).

    Entries that are never used again go first, the one admitted first before the others. At equal
    sizes no schedule has more hits; with unequal sizes the rule is a heuristic, see `bound`.
    """

    name = "belady"
    summary = (
        "evicts what is used again furthest in the future (the optimum if all sizes are equal)"
    )
    offline = True

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        everywhere = np.ones(len(batches.expert_bytes), np.bool_)

        def run(cell: Cell, hit: np.ndarray) -> Cell:
            _replay(batches, cell, batches.expert_bytes, False, everywhere, hit)
            return cell

        return cells_of(batches, budgets, per_lookup, run)


def furthest_next_use(
    batches: Batches,
    budget: int,
    expert_bytes: np.ndarray,
    divisible: bool = False,
    among: np.ndarray | None = None,
) -> tuple[Cell, int]:
    """Replay Belady's rule at one budget, on other experts than the model has.

    Parameters
    ----------
    batches : Batches
    budget : int
        Bytes.
    expert_bytes : int64 [L]
        Sizes of the experts of each layer, in place of ``batches.expert_bytes``.
    divisible : bool
        Evict no more bytes of an expert than have to go; they are read again when it is looked up.
    among : bool [L], optional
        The layers to replay, as if the model had no others. By default all of them.

    Returns
    -------
    cell : Cell
        A lookup of a divisible expert is a hit if at least a part was resident.
    read_bytes : int
        Bytes read in all.
    """
    hits = np.empty(len(batches), np.int32)
    cell = Cell(budget, hits, np.empty(len(batches), np.int64))
    layers = np.ones(len(expert_bytes), np.bool_) if among is None else among
    read_bytes = _replay(batches, cell, expert_bytes, divisible, layers, np.empty(0, np.bool_))
    return cell, read_bytes


def _replay(
    batches: Batches,
    cell: Cell,
    expert_bytes: np.ndarray,
    divisible: bool,
    among: np.ndarray,
    hit: np.ndarray,
) -> int:
    """Fill the arrays of `cell` and, if it is not empty, `hit`; return the bytes read."""
    read_bytes = _belady(
        batches.keys,
        batches.admit_rank,
        batches.batch_start,
        batches.layer,
        among,
        batches.next_use,
        batches.layer_of_lookup,
        expert_bytes,
        batches.n_expert,
        cell.budget_bytes,
        divisible,
        cell.hits,
        cell.resident_bytes,
        hit,
    )
    return int(read_bytes)


# The resident entries are a set of numbers: the positions in the trace of their next uses. A lookup
# hits if its own position is in the set. The victim is the largest number of the set. After the
# eviction the next uses of the batch's entries join the set. Positions that have passed can stay
# in it, because they are smaller than all that are still to come.
#
# The set is a bitset of three levels: `words` has a bit for each word of `bits` that is not empty,
# and `groups` has one for each such word of `words`. Within a word high positions are low bits, so
# the lowest set bit is the largest position. Its remainder modulo 67, which differs for all 64
# bits, tells which bit it is.
#
# The last divisible expert of an eviction may leave only in part: `gone` holds the missing bytes.
@kernel
def _belady(
    keys: np.ndarray,
    admit_rank: np.ndarray,
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    among: np.ndarray,
    next_use: np.ndarray,
    layer_of_lookup: np.ndarray,
    expert_bytes: np.ndarray,
    n_expert: int,
    budget: int,
    divisible: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> np.int64:
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
    admitted = np.zeros(expert_bytes.size * n_expert, np.int64)  # when each resident was admitted
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
                    used = np.int64(budget)
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
