"""`follow` with a guess of the next layer's experts in hand: it keeps them, and may read them ahead.

In go the batches with their guesses; out come cells and totals. The policies `retention` and `prefetch`
run on this with ``base=follow``.
"""

import numpy as np

from tracekit.kernels import Whole, kernel
from tracekit.policies.base import Batches, Cell, Guesses
from tracekit.policies.following import ONE, Following, judge, learn, nothing_learned
from tracekit.policies.offers import NONE, cheapest_of, least_of, nearness_of, next_to_go
from tracekit.trace.schema import DECODE


def run_on_follow(
    batches: Batches,
    guesses: Guesses,
    wanted: np.ndarray,
    spec_max: int,
    cell: Cell,
    read_bytes: np.ndarray,
    prefetched: np.ndarray,
    hit: np.ndarray,
) -> tuple[int, ...]:
    """Fill `cell` and the arrays for its budget.

    Parameters
    ----------
    batches, guesses
    wanted : bool [B, m]
        Which guesses are worth a read.
    spec_max : int
        The most experts that are read ahead after a batch; 0: none.
    cell : Cell
        With the arrays `hits` and `resident_bytes` to fill.
    read_bytes : int64 [B]
    prefetched : int32 [B]
    hit : bool [N], or [0]

    Returns
    -------
    demand, useful_bytes, reads, useful, late, skipped, evicted, promoted : int
        The totals that `prefetch` declares.
    """
    rows, row_start = batches.routing_rows()
    totals = _follow_acting(
        batches.keys,
        batches.batch_start,
        batches.layer,
        rows,
        row_start,
        batches.expert_bytes,
        batches.phase == DECODE,
        batches.counted,
        guesses.keys,
        wanted,
        spec_max,
        nearness_of(len(batches.expert_bytes)),
        nothing_learned(batches),
        cell.budget_bytes,
        batches.bypass,
        cell.hits,
        cell.resident_bytes,
        read_bytes,
        prefetched,
        hit,
    )
    return tuple(map(int, totals))


# As in `follow`: every key has an offer, its value, or infinity where it cannot go. A guess for the
# next layer has the value 1 until that layer has run. While room is made for a read ahead, the keys
# of the batch and the guesses cannot go.
@kernel
def _follow_acting(
    keys: np.ndarray,
    batch_start: np.ndarray,
    batch_layer: np.ndarray,
    rows: np.ndarray,
    row_start: np.ndarray,
    expert_bytes: np.ndarray,
    is_decode: np.ndarray,
    counted: np.ndarray,
    guesses: np.ndarray,
    wanted: np.ndarray,
    spec_max: int,
    nearness: np.ndarray,
    state: Following,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    read: np.ndarray,
    prefetched: np.ndarray,
    hit: np.ndarray,
) -> tuple[int, int, int, int, int, int, int, int]:
    n_layers = expert_bytes.size
    n_expert = state.table.shape[1]
    n_keys = n_layers * n_expert
    value = state.value
    here = np.zeros(n_keys, np.bool_)
    read_after = np.full(n_keys, -1, np.int64)
    offers = np.full(n_keys, NONE)
    least = np.full(n_layers, NONE)
    bits = offers.view(np.int32)
    least_bits = least.view(np.int32)
    scaled = np.empty(n_layers, np.float32)
    touched = np.full(n_keys, -1, np.int64)
    colder = -1  # a read ahead is colder than all that was touched, and than earlier ones
    n_rows: Whole = np.int64(1)  # as `learn` returns it: numba compiles that once
    used = demand = useful_bytes = reads = useful = late = skipped = evicted = promoted = 0
    for b in range(batch_layer.size):
        layer = int(batch_layer[b])
        base = layer * n_expert
        start = batch_start[b]
        stop = batch_start[b + 1]
        for r in range(row_start[b], row_start[b + 1]):
            n_rows = learn(state, n_rows, layer, rows[r])
        judge(state, layer)
        n_hits = 0
        n_ahead = 0
        bytes_read = 0
        for p in range(start, stop):
            key = keys[p]
            touched[key] = p
            if hit.size:
                hit[p] = here[key]
            if here[key]:
                n_hits += 1
                if read_after[key] >= 0:
                    n_ahead += 1
                    if counted[read_after[key]]:
                        useful += 1
                        useful_bytes += expert_bytes[layer]
                    if counted[b] and (read_after[key] != b - 1 or not is_decode[b]):
                        late += 1
                    read_after[key] = -1
            else:
                here[key] = True
                used += expert_bytes[layer]
                bytes_read += expert_bytes[layer]
        count = int(counted[b])
        demand += count * bytes_read
        for key in range(base, base + n_expert):
            offers[key] = value[key] if here[key] else NONE
        following = -1  # the layer that is guessed
        if is_decode[b]:
            for g in range(guesses.shape[1]):
                key = guesses[b, g]
                if key < 0:
                    continue
                following = key // n_expert
                value[key] = ONE
                if here[key]:
                    offers[key] = ONE
        if not bypass:
            for p in range(start, stop):
                offers[keys[p]] = NONE
        least_bits[layer] = least_of(bits, layer, n_expert)
        if following >= 0:
            least_bits[following] = least_of(bits, following, n_expert)
        while used > budget:
            other = next_to_go(least, nearness, scaled, layer)
            if least[other] == NONE:
                break
            victim = cheapest_of(bits, touched, other, n_expert, least_bits[other])
            here[victim] = False
            read_after[victim] = -1
            offers[victim] = NONE
            used -= expert_bytes[other]
            least_bits[other] = least_of(bits, other, n_expert)
        hits[b] = n_hits
        prefetched[b] = n_ahead
        if following >= 0:
            # The keys of the batch and the guesses cannot make room.
            fixed = 0
            for p in range(start, stop):
                if here[keys[p]]:
                    fixed += expert_bytes[layer]
                    offers[keys[p]] = NONE
            for g in range(guesses.shape[1]):
                key = guesses[b, g]
                if key >= 0 and here[key]:
                    promoted += count
                    if offers[key] != NONE:
                        fixed += expert_bytes[following]
                    offers[key] = NONE
            least_bits[layer] = least_of(bits, layer, n_expert)
            least_bits[following] = least_of(bits, following, n_expert)
            left = spec_max
            for g in range(guesses.shape[1]):
                key = guesses[b, g]
                if left == 0:
                    break
                if key < 0 or here[key] or not wanted[b, g]:
                    continue
                left -= 1
                size = expert_bytes[following]
                if used - fixed < used + size - budget:
                    skipped += count
                    continue
                while used + size > budget:
                    other = next_to_go(least, nearness, scaled, layer)
                    victim = cheapest_of(bits, touched, other, n_expert, least_bits[other])
                    here[victim] = False
                    read_after[victim] = -1
                    offers[victim] = NONE
                    used -= expert_bytes[other]
                    least_bits[other] = least_of(bits, other, n_expert)
                    evicted += count
                here[key] = True
                read_after[key] = b
                touched[key] = colder
                colder -= 1
                used += size
                fixed += size
                bytes_read += size
                reads += count
            for g in range(guesses.shape[1]):
                key = guesses[b, g]
                if key >= 0 and here[key]:
                    offers[key] = ONE
            least_bits[following] = least_of(bits, following, n_expert)
        for p in range(start, stop):
            key = keys[p]
            offers[key] = value[key] if here[key] else NONE
        least_bits[layer] = least_of(bits, layer, n_expert)
        resident[b] = used
        read[b] = bytes_read
    return demand, useful_bytes, reads, useful, late, skipped, evicted, promoted
