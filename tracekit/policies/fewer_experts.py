"""Fewer experts for every decoded token: the baseline that drop-cold must beat."""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.policies.base import Batches, Cell, Policy, register
from tracekit.policies.lossy import (
    LOSSY_COUNTERS,
    LOSSY_LEGEND,
    lossy_cell,
    normalised_weights,
)
from tracekit.policies.lru import LRURun
from tracekit.trace.errors import UsageError
from tracekit.trace.schema import DECODE


@dataclass(frozen=True)
class FewerExpertsParams:
    """Parameters of `FewerExperts`.

    Attributes
    ----------
    keep : int or None
        k': how many of a decoded token's experts are used, by rank. None: all but one.
    static : bool
        Count what would be left out of the misses of plain LRU, as if leaving experts out did not
        change what is cached.
    """

    keep: int | None = None
    static: bool = False

    def __post_init__(self) -> None:
        if self.keep is not None and self.keep < 1:
            raise ValueError("keep must be 1 or more")


@register
class FewerExperts(Policy):
    """LRU over the first k' experts of each decoded token, whether the others are resident or not.

    Prefill batches keep all their experts.
    """

    name = "fewer-experts"
    summary = "LRU over each decoded token's first k' experts only (changes the output)"
    Params = FewerExpertsParams
    lossy = True
    needs_rank = True
    can_bypass = True
    counters = LOSSY_COUNTERS
    legend = (LOSSY_LEGEND,)
    params: FewerExpertsParams

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        keep = batches.top_k - 1 if self.params.keep is None else self.params.keep
        if not 1 <= keep <= batches.top_k:
            raise UsageError(
                f"fewer-experts cannot keep {keep} of {batches.top_k} experts; "
                f"set fewer-experts.keep between 1 and {batches.top_k}."
            )
        batch = np.repeat(np.arange(len(batches)), batches.lookups)
        rank = np.arange(len(batches.keys)) - batches.batch_start[batch]
        dropped = (batches.phase[batch] == DECODE) & (rank >= keep)
        weight = normalised_weights(batches)
        plain = LRURun(batches, budgets).feed(batches, per_lookup=True)
        if self.params.static:
            return [
                lossy_cell(
                    batches, c, c.hit & ~dropped, dropped, c.resident_bytes, weight, per_lookup
                )
                for c in plain
            ]
        kept = _without(batches, batch, dropped)
        cells = []
        for lru, cell in zip(plain, LRURun(kept, budgets).feed(kept, per_lookup=True), strict=True):
            hit = np.zeros(len(batches.keys), np.bool_)
            hit[~dropped] = cell.hit
            cells.append(
                lossy_cell(batches, lru, hit, dropped, cell.resident_bytes, weight, per_lookup)
            )
        return cells


def _without(batches: Batches, batch: np.ndarray, dropped: np.ndarray) -> Batches:
    """Return `batches` without the `dropped` keys."""
    kept = ~dropped
    lookups = np.bincount(batch[kept], minlength=len(batches))
    return replace(
        batches,
        keys=batches.keys[kept],
        admit_rank=batches.admit_rank[kept],
        batch_start=np.concatenate([[0], np.cumsum(lookups)]),
        weights=None,
    )
