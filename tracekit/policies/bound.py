"""A bound on the hits of every demand policy, for experts of any sizes."""

import numpy as np

from tracekit.policies.base import Batches, Limit, Policy, register
from tracekit.policies.belady import furthest_next_use
from tracekit.trace.schema import DECODE


@register
class Bound(Policy):
    """More hits than this no demand policy has that keeps to the budget.

    It is what Belady's rule reaches when every expert has the size of the smallest. Why no policy
    can do better: take the resident sets that a policy leaves after each batch. Each fits the
    budget at the real sizes, or is the batch itself where the batch alone is larger. With no expert
    larger than it really is the same sets still fit, so the same policy is possible there and has
    the same hits; and with all sizes equal no policy has more hits than Belady's rule.

    Belady's rule at the real sizes is not a bound: by keeping one large expert less it can be
    possible to keep two small ones.

    The bound is on the total. Hits of decode batches are bounded by the same number, and by the
    decode lookups whose key was looked up before. Every key is read at least once, at its size, and
    every further miss reads at least the smallest size.
    """

    name = "bound"
    summary = "more hits than this no demand policy can have at this budget, whatever the sizes"
    offline = True

    def simulate(self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False):
        """See `Policy.simulate`."""
        smallest = int(batches.expert_bytes.min(initial=np.iinfo(np.int64).max))
        equal = np.full_like(batches.expert_bytes, smallest)
        first = _first_lookups(batches)
        first_bytes = first * batches.expert_bytes[batches.layer]
        decode = batches.phase == DECODE
        limits = []
        for budget in budgets:
            hits = int(furthest_next_use(batches, int(budget), equal).hits.sum())
            hits_decode = min(hits, int((batches.lookups - first)[decode].sum()))
            repeated = int((batches.lookups - first).sum()) - hits
            repeated_decode = int((batches.lookups - first)[decode].sum()) - hits_decode
            limits.append(
                Limit(
                    budget_bytes=int(budget),
                    hits=hits,
                    hits_decode=hits_decode,
                    read_bytes=int(first_bytes.sum()) + repeated * smallest,
                    read_bytes_decode=int(first_bytes[decode].sum()) + repeated_decode * smallest,
                )
            )
        return limits


def _first_lookups(batches: Batches) -> np.ndarray:
    """Count the keys of each batch that were never looked up before, int64 [B]."""
    is_first = np.ones(len(batches.keys) + 1, np.bool_)
    is_first[batches.next_use] = False
    batch = np.searchsorted(batches.batch_start, np.flatnonzero(is_first[:-1]), side="right") - 1
    return np.bincount(batch, minlength=len(batches))
