"""What lossy policies share: normalised weights, and what leaving experts out saves and costs.

In go batches with weights, and which lookups hit and which were left out; out comes a cell with
its counters. Nothing here knows the rule by which experts are left out.
"""

import numpy as np

from tracekit.figures import Figure, Unit
from tracekit.policies.base import Batches, Cell
from tracekit.trace.schema import DECODE

LOSSY_COUNTERS = (
    Figure("dropped", Unit.COUNT, "experts left out"),
    Figure("saved_bytes", Unit.BYTES, "decode bytes that plain LRU reads and this does not"),
    Figure("saved_share", Unit.FRACTION, "the same, of the decode bytes of plain LRU", True),
    Figure(
        "mass_lost", Unit.FRACTION, "router weight that a decode routing loses, on average", True
    ),
)
LOSSY_LEGEND = (
    "leaving experts out changes what the model computes; mass lost: their share of the "
    "router weight; saved: of the decode bytes that plain LRU reads; they are no lookups"
)


def normalised_weights(batches: Batches) -> np.ndarray:
    """Return the weight of each key as a share of its batch, float64 [N].

    0 in prefill batches; NaN in a decode batch where a weight is not known.
    """
    batch = np.repeat(np.arange(len(batches)), batches.lookups)
    given = np.nan if batches.weights is None else batches.weights
    weight = np.where(batches.phase[batch] == DECODE, given, 0).astype(np.float64)
    total = np.bincount(batch, weight, len(batches))[batch]
    share: np.ndarray = np.divide(weight, total, out=np.zeros_like(weight), where=total != 0)
    return share


def lossy_cell(
    batches: Batches,
    lru: Cell,
    hit: np.ndarray,
    dropped: np.ndarray,
    resident_bytes: np.ndarray,
    weight: np.ndarray,
    per_lookup: bool,
) -> Cell:
    """Return the cell of a policy that left lookups out.

    Its counters are `dropped` (experts left out), `saved_bytes` and `saved_share` (decode bytes
    that plain LRU reads at this budget and this policy does not) and `mass_lost` (the share of
    router weight that a decode routing loses, on average; None where weights are not known).

    Parameters
    ----------
    batches : Batches
    lru : Cell
        What plain LRU does at the same budget.
    hit, dropped : bool [N]
        Which keys hit, and which were left out; no key is both.
    resident_bytes : int64 [B]
    weight : float64 [N]
        From `normalised_weights`.
    per_lookup : bool
        Fill ``Cell.hit``.
    """
    batch = np.repeat(np.arange(len(batches)), batches.lookups)
    hits = np.bincount(batch[hit], minlength=len(batches)).astype(np.int32)
    lookups = batches.lookups - np.bincount(batch[dropped], minlength=len(batches))
    decode = batches.counted_decode
    dropped = dropped & decode[batch]
    size = batches.expert_bytes[batches.layer]
    read_by_lru = int(((batches.lookups - lru.hits) * size)[decode].sum())
    saved = read_by_lru - int(((lookups - hits) * size)[decode].sum())
    n_routings = int(np.count_nonzero(decode))
    lost = float(weight[dropped].sum())
    return Cell(
        lru.budget_bytes,
        hits,
        resident_bytes,
        lookups=lookups,
        hit=hit if per_lookup else None,
        counters={
            "dropped": int(np.count_nonzero(dropped)),
            "saved_bytes": saved,
            "saved_share": saved / read_by_lru if read_by_lru else None,
            "mass_lost": None if np.isnan(lost) or not n_routings else lost / n_routings,
        },
    )
