"""S3-FIFO: a small queue sorts out what is used once, a main queue keeps the rest."""

from collections.abc import Sequence

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, StateArray, register
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.recency import append, empty_lists, pop_cold, unlink

_SMALL, _MAIN, _GHOST, _NOWHERE = 0, 1, 2, 3
_MOST_USES = 3  # two bits


@register
class S3FIFO(Policy):
    """S3-FIFO (J. Yang, Y. Zhang, Z. Qiu, Y. Yue and K. V. Rashmi, SOSP 2023), their algorithm 1.

    Three queues in the order of admission. New experts go into the small one, which has a tenth of
    the budget. An expert that reaches its end moves to the main queue if it was hit more than once
    there, and is evicted else, and the ghost queue remembers its key. One that is asked for while
    it is remembered goes into the main queue at once. The end of the main queue goes back to its
    beginning as long as it has hits (at most 3 are counted), one for each round. The victim comes
    from the small queue while that has its tenth, else from the main one.

    The queues are measured in bytes: the small one against a tenth of the budget, the main and the
    ghost one against the other nine. At equal sizes this is the paper's rule.

    The paper evicts before it admits one request. Here the experts that a batch misses are admitted
    after room was made for all of them, in the order of first touch, and one counts as remembered
    if it still is by then. Experts that the batch hit keep their places, and the search passes over
    them. Eviction stops as soon as the rest fits: where the paper evicts from the main queue
    because an expert has moved there, it goes on and evicts from the small one too. If all that may
    go is in one queue, the victim is from there. With ``--bypass`` the experts of the batch are in
    their queues before room is made.
    """

    name = "s3-fifo"
    summary = "S3-FIFO: three queues; what is used once leaves by the small one"
    can_bypass = True

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        keys = n_layers * n_expert
        return (
            StateArray("uses", "L × E", keys, "hits of each resident, at most 3"),
            StateArray("ghost", "L × E", 4 * keys, "the ghost queue: keys of what was evicted"),
        )

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        return cells_of_kernel(
            batches,
            budgets,
            per_lookup,
            _s3_fifo,
            batches.keys,
            batches.admit_rank,
            batches.batch_start,
            batches.key_bytes,
            batches.n_expert,
        )


# The three queues share their links, and `place` says in which one a key is. A hit only counts; it
# moves nothing. `small` and `main` are where the search of this batch stands in the two queues:
# what it has passed over is the batch's own, so it never has to go back. What moves or goes back to
# the beginning of the main queue comes up again later in the same search. `draining` says that the
# search takes from the small queue until it has evicted there, however small that is by now.
@kernel
def _s3_fifo(
    keys: np.ndarray,
    admit_rank: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    n_expert: int,
    budget: int,
    bypass: bool,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    head = key_bytes.size  # the queue Q has its sentinel at head + Q
    after, before = empty_lists(head + 3)
    place = np.full(head, _NOWHERE, np.int8)
    uses = np.zeros(head, np.int8)
    hit_in = np.full(head, -1, np.int64)
    admitted = np.empty(n_expert, np.int32)
    size = np.zeros(3, np.int64)
    small_share = (budget + 9) // 10  # a whole number is a tenth or more from here on
    main_share = budget - small_share  # and above nine tenths from the next number on
    used = np.int64(0)
    for b in range(batch_start.size - 1):
        n_hits = np.int64(0)
        for p in range(batch_start[b], batch_start[b + 1]):
            key = keys[p]
            is_hit = place[key] <= _MAIN
            admitted[admit_rank[p]] = -1 if is_hit else key
            if hit.size:
                hit[p] = is_hit
            if is_hit:
                n_hits += 1
                uses[key] = min(uses[key] + 1, _MOST_USES)
                hit_in[key] = -1 if bypass else b
            else:
                used += key_bytes[key]

        for late in range(2):
            if (late == 0) == bypass:
                for i in range(batch_start[b + 1] - batch_start[b]):
                    key = admitted[i]
                    if key < 0:
                        continue
                    queue = _SMALL
                    if place[key] == _GHOST:
                        unlink(after, before, key)
                        size[_GHOST] -= key_bytes[key]
                        queue = _MAIN
                    append(after, before, head + queue, key)
                    place[key] = queue
                    size[queue] += key_bytes[key]
                    uses[key] = 0
                continue
            small, main = after[head + _SMALL], after[head + _MAIN]
            draining = False
            while used > budget:
                while small != head + _SMALL and hit_in[small] == b:
                    small = after[small]
                while main != head + _MAIN and hit_in[main] == b:
                    main = after[main]
                if small == head + _SMALL and main == head + _MAIN:
                    break
                draining = small != head + _SMALL and (
                    draining or size[_SMALL] >= small_share or main == head + _MAIN
                )
                evicts_main = not draining
                if draining:
                    key = small
                    small = after[key]
                    unlink(after, before, key)
                    size[_SMALL] -= key_bytes[key]
                    queue = _MAIN if uses[key] > 1 else _GHOST
                    append(after, before, head + queue, key)
                    place[key] = queue
                    size[queue] += key_bytes[key]
                    if queue == _MAIN:
                        uses[key] = 0
                        evicts_main = size[_MAIN] > main_share
                        if main == head + _MAIN:
                            main = key
                    else:
                        used -= key_bytes[key]
                        draining = False
                while evicts_main:
                    key = main
                    main = after[key]
                    if hit_in[key] == b:
                        continue
                    unlink(after, before, key)
                    if uses[key] > 0:
                        uses[key] -= 1
                        append(after, before, head + _MAIN, key)
                        if main == head + _MAIN:
                            main = key
                    else:
                        place[key] = _NOWHERE
                        size[_MAIN] -= key_bytes[key]
                        used -= key_bytes[key]
                        evicts_main = False
                while size[_GHOST] > main_share:
                    key = pop_cold(after, before, head + _GHOST)
                    place[key] = _NOWHERE
                    size[_GHOST] -= key_bytes[key]
        hits[b] = n_hits
        resident[b] = used
