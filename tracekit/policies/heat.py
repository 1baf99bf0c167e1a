"""Heat-protected LRU: what was hit often enough is skipped."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.policies.base import Batches, Cell, Policy, StateArray, register
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.spared import spared_lru


@dataclass(frozen=True)
class HeatParams:
    """Parameters of `Heat`.

    Attributes
    ----------
    hits : int
        An expert with more hits than these since it was read is skipped.
    """

    hits: int = 4

    def __post_init__(self) -> None:
        if self.hits < 0:
            raise ValueError("hits must be 0 or more")


@register
class Heat(Policy):
    """LRU that skips experts with more than `hits` hits since they were read, unless all have more.

    An engine's rule: the heat-protected eviction of llama-cpp-turboquant (pull request 300 there,
    2026), whose default is 4. Hits do not fade: a hot expert stays until everything else that may
    go is hot too, and then the one touched longest ago goes. An expert that comes back begins at 0.

    A batch hits an expert once, however many of its tokens selected it. Sizes count nothing. With
    ``--bypass`` what was just used may go too: what has few hits first, as above.
    """

    name = "heat"
    summary = "LRU that skips experts with more than 4 hits since they were read"
    Params = HeatParams
    can_bypass = True
    params: HeatParams

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        keys = n_layers * n_expert
        return (StateArray("hits", "L × E", 4 * keys, "hits of each expert since it was read"),)

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        return cells_of_kernel(
            batches,
            budgets,
            per_lookup,
            spared_lru,
            batches.keys,
            batches.batch_start,
            batches.key_bytes,
            self.params.hits,
            np.zeros(len(batches), np.int32),
            np.empty((1, 0), np.int32),
            0.0,
        )
