"""Pinning: the experts that were hot elsewhere stay, and the rest of the budget is LRU."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.policies.base import Batches, Cell, Policy, Popularity, StateArray, register
from tracekit.policies.cells import cells_of_kernel
from tracekit.policies.spared import spared_lru


@dataclass(frozen=True)
class PinParams:
    """Parameters of `Pin`.

    Attributes
    ----------
    share : float
        The share of the budget that the pinned experts take, from 0 to 1.
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise ValueError("share must be from 0 to 1")


@register
class Pin(Policy):
    """LRU that never evicts the hottest experts while another can go.

    Which experts are hot is learned on the other turns of the trace, on another trace (``--train``)
    or taken from a file of counts or a trace (``--pin-from``): the share of its layer's selections that an
    expert had, for each of its bytes. The tokens of prompts count as those that were decoded. The
    hottest experts that fit into `share` of the budget are pinned, one after the other; one that
    does not fit is passed over, and one that was never selected is not pinned. `tracekit info`
    lists them in the same order.

    A pinned expert is read when it is first asked for, as any other: nothing is read ahead. Where
    everything that may go is pinned, the one touched longest ago goes. What is learned on the other
    turns differs from turn to turn, so the pinned experts change where a turn begins. With
    ``--bypass`` what was just used may go too: what is not pinned first.
    """

    name = "pin"
    summary = "LRU beside the experts that were used most on other turns, which stay"
    Params = PinParams
    needs_popularity = True
    can_bypass = True
    params: PinParams

    @classmethod
    def state(cls, n_layers: int, n_expert: int, top_k: int) -> Sequence[StateArray]:
        keys = n_layers * n_expert
        return (StateArray("pinned", "L × E", keys, "which experts are pinned"),)

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        if batches.popularity is None:
            raise ValueError("a policy that needs popularity takes batches with it")
        return cells_of_kernel(
            batches,
            budgets,
            per_lookup,
            spared_lru,
            batches.keys,
            batches.batch_start,
            batches.key_bytes,
            np.iinfo(np.int64).max,
            batches.popularity.row_of(batches.turn),
            _hottest_first(batches.popularity, batches.expert_bytes),
            self.params.share,
        )


def _hottest_first(popularity: Popularity, expert_bytes: np.ndarray) -> np.ndarray:
    """Return the keys by the share of their layer's uses that a byte of them has, int32 [P, n_keys].

    Ties go to the lower layer, then to the lower expert; -1 in place of what was never used.
    """
    hottest = np.empty(popularity.counts.shape, np.int32)
    for counts, keys in zip(popularity.counts, hottest, strict=True):
        of_layer = counts.reshape(len(expert_bytes), -1)
        share = of_layer / np.maximum(of_layer.sum(axis=1, keepdims=True), 1)
        worth = (share / expert_bytes[:, None]).ravel()
        keys[:] = np.argsort(-worth, kind="stable")
        keys[worth[keys] == 0] = -1
    return hottest
