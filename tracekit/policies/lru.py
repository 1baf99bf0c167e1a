"""Global LRU over (layer, expert)."""

import numpy as np

from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Totals, register
from tracekit.policies.bits import lowest_bit
from tracekit.policies.depths import hits_and_peaks_at
from tracekit.policies.fed import FedPolicy, Run
from tracekit.policies.model import Model
from tracekit.policies.stack import hits_at
from tracekit.policies.totals import totals_of, totals_of_equal_sizes

_FEW = 8  # budgets up to which a replay of each is faster than the one pass for all of them


@register
class LRU(FedPolicy):
    """Evict the entry that was touched longest ago.

    What a batch has just used is the most recent of all. So with ``--bypass`` the victims are the
    same, unless the batch alone is larger than the budget: then the first that it touched go too.
    """

    name = "lru"
    summary = "evicts the least recently used expert of any layer"
    can_bypass = True

    def start(self, model: Model, budgets: np.ndarray) -> "LRURun":
        return LRURun(model, budgets)

    def gives_totals(self, batches: Batches, n_budgets: int) -> bool:
        return n_budgets > _FEW

    def totals(self, batches: Batches, budgets: np.ndarray) -> list[Totals]:
        if batches.has_equal_sizes:
            return totals_of_equal_sizes(batches, budgets, hits_at(batches, budgets))
        return totals_of(batches, budgets, *hits_and_peaks_at(batches, budgets))


class LRURun(Run):
    """All budgets in one pass over each piece.

    A piece is replayed as if the keys that were seen before it stood at its front, each once, in the
    order of their last touch. So positions stay small, however long the run is.
    """

    def __init__(self, model: Model, budgets: np.ndarray):
        self._budgets = budgets
        self._key_bytes = model.key_bytes
        self._last = np.full(model.n_keys, -1, np.int32)  # position of each key's last lookup
        self._previous = np.empty(model.n_keys, np.int32)
        self._tails = np.zeros(len(budgets), np.int64)
        self._used = np.zeros(len(budgets), np.int64)

    def feed(self, batches: Batches, per_lookup: bool = False) -> list[Cell]:
        before = self._renumbered()
        keys = np.concatenate([before, batches.keys]) if len(before) else batches.keys
        shape = (len(self._budgets), len(batches))
        hits = np.empty(shape, np.int32)
        resident = np.empty(shape, np.int64)
        hit = np.empty((len(self._budgets), len(keys) if per_lookup else 0), np.bool_)
        _lru(
            keys,
            batches.batch_start + len(before),
            self._key_bytes,
            self._key_bytes.max(),
            self._budgets,
            batches.bypass,
            self._last,
            self._previous,
            np.zeros((len(keys) >> 6) + 1, np.uint64),
            self._tails,
            self._used,
            hits,
            resident,
            hit,
        )
        return [
            Cell(
                int(budget), hits[c], resident[c], hit=hit[c, len(before) :] if per_lookup else None
            )
            for c, budget in enumerate(self._budgets)
        ]

    def _renumbered(self) -> np.ndarray:
        """Give each key that was seen its place among them as its position; return them so, int32."""
        seen = np.flatnonzero(self._last >= 0)
        order = seen[np.argsort(self._last[seen])].astype(np.int32)
        self._tails = np.searchsorted(self._last[order], self._tails)
        self._last[order] = np.arange(len(order))
        return order


# The kernel notes for every lookup where its key was looked up before. After each batch the cache is
# then a stretch of the trace itself: the keys whose last lookup is at or after a tail, which only
# moves forward, as far as the budget requires. So a lookup hits if its key's previous position is
# not before the tail, and only the tail and the resident bytes differ between budgets.
#
# The tail skips positions whose key was looked up again later. They are marked in a bitset that all
# budgets share, so that a tail takes one step for each eviction, however many positions lie between.
# The least number of evictions is known before the sizes of the victims are, and a processor predicts
# the end of a loop that counts it down.
@kernel
def _lru(
    keys: np.ndarray,
    batch_start: np.ndarray,
    key_bytes: np.ndarray,
    largest: np.int64,
    budgets: np.ndarray,
    bypass: bool,
    last: np.ndarray,
    previous: np.ndarray,
    superseded: np.ndarray,
    tails: np.ndarray,
    used: np.ndarray,
    hits: np.ndarray,
    resident: np.ndarray,
    hit: np.ndarray,
) -> None:
    one = np.uint64(1)
    for b in range(batch_start.size - 1):
        start = batch_start[b]
        n = batch_start[b + 1] - start
        for i in range(n):
            key = keys[start + i]
            p = last[key]
            previous[i] = p
            last[key] = start + i
            if p >= 0:
                superseded[p >> 6] |= one << np.uint64(p & 63)
        if hit.size:
            for c in range(budgets.size):
                for i in range(n):
                    hit[c, start + i] = previous[i] >= tails[c]
        for c in range(budgets.size):
            tail = tails[c]
            n_hits = np.int64(0)
            for i in range(n):
                n_hits += previous[i] >= tail
            size = used[c]
            if n > n_hits:
                size += (n - n_hits) * key_bytes[keys[start]]
            excess = size - budgets[c]
            if excess > 0:
                to_go = (excess + largest - 1) // largest
                w = tail >> 6
                live = (~superseded[w] >> np.uint64(tail & 63)) << np.uint64(tail & 63)
                while to_go > 0:
                    while live == 0:
                        w += 1
                        live = ~superseded[w]
                    position = (w << 6) + lowest_bit(live)
                    if position >= start and not bypass:
                        break
                    live &= live - one
                    size -= key_bytes[keys[position]]
                    tail = position + 1
                    to_go -= 1
                    if to_go == 0 and size > budgets[c]:
                        to_go = 1
                tails[c] = tail
            used[c] = size
            hits[c, b] = n_hits
            resident[c, b] = size
