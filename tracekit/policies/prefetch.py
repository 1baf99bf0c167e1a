"""LRU that reads ahead what the next layer is predicted to want."""

from dataclasses import dataclass

import numpy as np

from tracekit.figures import Figure, Unit
from tracekit.kernels import kernel
from tracekit.policies.base import Batches, Cell, Policy, register
from tracekit.policies.retention import PROMOTED, PROMOTED_LEGEND
from tracekit.trace.errors import UsageError
from tracekit.trace.schema import DECODE


@dataclass(frozen=True)
class PrefetchParams:
    """Parameters of `Prefetch`.

    Attributes
    ----------
    predictor : str
        Whose guesses are acted on; ``oracle`` for perfect ones.
    horizon : int
        How many MoE layers ahead it looks.
    spec_max : int
        The most experts read ahead after a batch.
    drop_frac : float
        Of F > 0: a predicted expert with a predicted weight below F / k is not read ahead, since
        drop-cold at F would not read it either. The best prediction is always kept.
    """

    predictor: str = "stale-gate"
    horizon: int = 2
    spec_max: int = 2
    drop_frac: float = 0.0

    def __post_init__(self):
        if self.spec_max < 0:
            raise ValueError("spec_max must be 0 or more")
        if not self.drop_frac >= 0:
            raise ValueError("drop_frac must be 0 or more")


@register
class Prefetch(Policy):
    """Retention, and predicted experts that are missing are read into the cold end.

    After a decode batch's eviction and promotion, at most `spec_max` of the first k predicted
    experts that are missing are read, the best first. Demand always wins: room is made from the
    coldest entries that neither the batch touched nor the prediction names, and where those do not
    suffice nothing is evicted and the read is skipped. What was read ahead and is hit before it is
    evicted was useful, the rest wasted:
    ``read_bytes = demand_bytes + speculative_useful_bytes + speculative_wasted_bytes``.
    """

    name = "prefetch"
    summary = "retention, and missing experts predicted for the next layer are read ahead"
    Params = PrefetchParams
    needs_predictor = True
    speculative = True
    counters = (
        Figure("demand_bytes", Unit.BYTES, "bytes read for lookups that missed"),
        Figure("speculative_useful_bytes", Unit.BYTES, "bytes read ahead and hit before eviction"),
        Figure("speculative_reads", Unit.COUNT, "experts read ahead"),
        Figure("speculative_useful", Unit.COUNT, "experts read ahead and hit before eviction"),
        Figure("speculative_skipped", Unit.COUNT, "reads ahead that found no room"),
        Figure("evicted_by_speculation", Unit.COUNT, "residents that made room for reads ahead"),
        PROMOTED,
        Figure("speculative_wasted_bytes", Unit.BYTES, "bytes read ahead for nothing"),
        Figure("useful_share", Unit.FRACTION, "experts read ahead that were useful", True),
    )
    legend = (
        "reading ahead: every such read is taken to arrive in time; useful: hit before it was "
        "evicted; skipped: no room; evicted by speculation: residents that made room; demand "
        "decode: what decoded tokens still wait for",
        PROMOTED_LEGEND,
    )

    def simulate(self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False):
        """See `Policy.simulate`."""
        wanted = self._wanted(batches)
        is_decode = batches.phase == DECODE
        cells = []
        for budget in budgets:
            hits = np.empty(len(batches), np.int32)
            resident = np.empty(len(batches), np.int64)
            read = np.empty(len(batches), np.int64)
            prefetched = np.empty(len(batches), np.int32)
            hit = np.empty(len(batches.keys) if per_lookup else 0, np.bool_)
            counts = np.zeros(len(_COUNTED), np.int64)
            _prefetch(
                batches.keys,
                batches.batch_start,
                batches.key_bytes,
                is_decode,
                batches.guesses.keys,
                wanted,
                min(self.params.spec_max, batches.top_k),
                int(budget),
                hits,
                resident,
                read,
                prefetched,
                hit,
                counts,
            )
            counters = dict(zip(_COUNTED, counts.tolist(), strict=True))
            counters["speculative_wasted_bytes"] = (
                int(read.sum()) - counters["demand_bytes"] - counters["speculative_useful_bytes"]
            )
            reads = counters["speculative_reads"]
            counters["useful_share"] = counters["speculative_useful"] / reads if reads else None
            cells.append(
                Cell(
                    int(budget),
                    hits,
                    resident,
                    read_bytes=read,
                    prefetched=prefetched,
                    hit=hit if per_lookup else None,
                    counters=counters,
                )
            )
        return cells

    def _wanted(self, batches: Batches) -> np.ndarray:
        """Return which guesses are worth a read, bool [B, m]."""
        guesses = batches.guesses
        if not self.params.drop_frac:
            return np.ones(guesses.keys.shape, np.bool_)
        if guesses.weights is None:
            raise UsageError(
                f"prefetch.drop_frac needs predicted weights, and {self.params.predictor} predicts "
                "none on this trace; leave drop_frac at 0 or take another predictor."
            )
        # A weight that is not known (NaN) is no reason not to read.
        wanted = ~(guesses.weights < self.params.drop_frac / batches.top_k)
        wanted[:, 0] = True
        return wanted


# Those of the counters that the kernel fills, in its order.
_COUNTED = tuple(figure.name for figure in Prefetch.counters[:7])


# The list of `retention`, and a flag on what was read ahead and not yet hit. To make room, the walk
# from the cold end first only adds up what it may take, leaving out the batch's keys and the
# predicted ones; it evicts once that suffices. The best prediction is read first, so the next one
# stands colder than it.
@kernel
def _prefetch(
    keys,
    batch_start,
    key_bytes,
    is_decode,
    guesses,
    wanted,
    spec_max,
    budget,
    hits,
    resident,
    read,
    prefetched,
    hit,
    counts,
):
    end = key_bytes.size
    after = np.arange(end + 1).astype(np.int32)
    before = after.copy()
    is_resident = np.zeros(end, np.bool_)
    is_ahead = np.zeros(end, np.bool_)
    protected_in = np.full(end, -1, np.int64)
    used = np.int64(0)
    demand = np.int64(0)
    useful_bytes = np.int64(0)
    reads = np.int64(0)
    useful = np.int64(0)
    skipped = np.int64(0)
    evicted = np.int64(0)
    promoted = np.int64(0)
    for b in range(batch_start.size - 1):
        n_hits = np.int64(0)
        n_ahead = np.int64(0)
        bytes_read = np.int64(0)
        for p in range(batch_start[b], batch_start[b + 1]):
            key = keys[p]
            if hit.size:
                hit[p] = is_resident[key]
            if is_resident[key]:
                n_hits += 1
                after[before[key]] = after[key]
                before[after[key]] = before[key]
                if is_ahead[key]:
                    is_ahead[key] = False
                    n_ahead += 1
                    useful_bytes += key_bytes[key]
            else:
                is_resident[key] = True
                used += key_bytes[key]
                bytes_read += key_bytes[key]
            protected_in[key] = b
            recent = before[end]
            after[recent] = key
            before[key] = recent
            after[key] = end
            before[end] = key
        demand += bytes_read
        while used > budget:
            key = after[end]
            if protected_in[key] == b:
                break
            after[end] = after[key]
            before[after[key]] = end
            is_resident[key] = False
            is_ahead[key] = False
            used -= key_bytes[key]
        hits[b] = n_hits
        prefetched[b] = n_ahead
        useful += n_ahead
        if is_decode[b]:
            for g in range(guesses.shape[1] - 1, -1, -1):
                key = guesses[b, g]
                if key < 0:
                    continue
                protected_in[key] = b
                if is_resident[key]:
                    promoted += 1
                    after[before[key]] = after[key]
                    before[after[key]] = before[key]
                    recent = before[end]
                    after[recent] = key
                    before[key] = recent
                    after[key] = end
                    before[end] = key
            left = spec_max
            for g in range(guesses.shape[1]):
                key = guesses[b, g]
                if left == 0:
                    break
                if key < 0 or is_resident[key] or not wanted[b, g]:
                    continue
                left -= 1
                excess = used + key_bytes[key] - budget
                room = np.int64(0)
                victim = after[end]
                while room < excess and victim != end:
                    if protected_in[victim] != b:
                        room += key_bytes[victim]
                    victim = after[victim]
                if room < excess:
                    skipped += 1
                    continue
                victim = after[end]
                while excess > 0:
                    following = after[victim]
                    if protected_in[victim] != b:
                        after[before[victim]] = following
                        before[following] = before[victim]
                        is_resident[victim] = False
                        is_ahead[victim] = False
                        used -= key_bytes[victim]
                        excess -= key_bytes[victim]
                        evicted += 1
                    victim = following
                cold = after[end]
                after[end] = key
                before[key] = end
                after[key] = cold
                before[cold] = key
                is_resident[key] = True
                is_ahead[key] = True
                used += key_bytes[key]
                bytes_read += key_bytes[key]
                reads += 1
        resident[b] = used
        read[b] = bytes_read
    counts[:] = (demand, useful_bytes, reads, useful, skipped, evicted, promoted)
