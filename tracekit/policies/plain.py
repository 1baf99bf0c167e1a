"""A policy of one's own in plain Python: it chooses the victim, and the accounting is done here."""

from abc import abstractmethod
from collections.abc import Collection, Sequence

import numpy as np

from tracekit.policies.base import Batches, Cell, Policy
from tracekit.trace.errors import UsageError


class PlainPolicy(Policy):
    """Derive from it and write `victim`; write `start`, `touch` and `end_batch` if there is state.

    Plain Python takes microseconds where a kernel takes nanoseconds. That is fast enough to try an
    idea on a recorded run.

    Attributes
    ----------
    batch : tuple of int
        The keys of the batch in hand, in the order of their last touch. Without ``--bypass`` they
        stay until the batch's load ends, and `victim` is not given them. With it they may be
        dropped at once, and `victim` is given those as well. A policy that has no answer there
        sets ``can_bypass = False``.

    Examples
    --------
    >>> from tracekit.policies import PlainPolicy
    >>> class FirstIn(PlainPolicy):
    ...     name = "first-in"
    ...     summary = "evicts what was admitted first"
    ...
    ...     def start(self, batches):
    ...         self.admitted = {}
    ...
    ...     def touch(self, key, now, hit):
    ...         if not hit:
    ...             self.admitted[key] = now
    ...
    ...     def victim(self, evictable):
    ...         return min(evictable, key=self.admitted.get)
    """

    can_bypass = True
    batch: tuple[int, ...] = ()

    def start(self, batches: Batches) -> None:
        """Begin with an empty cache; called once for each budget."""

    def touch(self, key: int, now: int, hit: bool) -> None:
        """Note that batch `now` looked up `key`; its layer is ``key // batches.n_expert``."""

    def end_batch(self, layer: int, rows: Sequence[Sequence[int]]) -> None:
        """Note that a batch has run, after its touches and before the first `victim`.

        Parameters
        ----------
        layer : int
            Index among the MoE layers.
        rows : sequence of sequence of int
            The experts of each token of the batch, in slot order: also those of a prompt's tokens.
        """

    @abstractmethod
    def victim(self, evictable: Collection[int]) -> int:
        """Choose the key to evict.

        Parameters
        ----------
        evictable : collection of int
            The resident keys that the batch did not touch, in order of last touch, the one touched
            longest ago first. With ``--bypass`` those of the batch follow: a key that it had to
            read and that is chosen is not kept.
        """

    def simulate(
        self, batches: Batches, budgets: np.ndarray, per_lookup: bool = False
    ) -> list[Cell]:
        """Replay each budget with an instance of its own."""
        return [
            type(self)(self.params)._simulate_one(batches, int(budget), per_lookup)
            for budget in budgets
        ]

    def _simulate_one(self, batches: Batches, budget: int, per_lookup: bool) -> Cell:
        hits = np.zeros(len(batches), np.int32)
        resident_bytes = np.zeros(len(batches), np.int64)
        hit = np.zeros(len(batches.keys) if per_lookup else 0, np.bool_)
        key_bytes = batches.key_bytes.tolist()
        keys = batches.keys.tolist()
        batch_start = batches.batch_start.tolist()
        layers = batches.layer.tolist()
        rows, row_start = batches.routing_rows()
        residents: dict[int, None] = {}  # least recently touched first
        used = 0
        self.start(batches)
        for b in range(len(batches)):
            start, batch = batch_start[b], keys[batch_start[b] : batch_start[b + 1]]
            self.batch = tuple(batch)
            for place, key in enumerate(batch):
                is_hit = key in residents
                if is_hit:
                    del residents[key]
                    hits[b] += 1
                else:
                    used += key_bytes[key]
                if per_lookup:
                    hit[start + place] = is_hit
                self.touch(key, b, is_hit)
            self.end_batch(layers[b], rows[row_start[b] : row_start[b + 1]].tolist())
            if batches.bypass:
                residents.update(dict.fromkeys(batch))
            while used > budget and residents:
                victim = self.victim(residents.keys())
                if not _holds(residents, victim):
                    raise UsageError(
                        f"Policy {self.name!r} chose to evict {victim!r}, which is not one of the "
                        f"{len(residents)} keys that its victim() was given."
                    )
                del residents[victim]
                used -= key_bytes[victim]
            if not batches.bypass:
                residents.update(dict.fromkeys(batch))
            resident_bytes[b] = used
        return Cell(budget, hits, resident_bytes, hit=hit if per_lookup else None)


def _holds(residents: dict[int, None], victim: object) -> bool:
    try:
        return victim in residents
    except TypeError:  # a list, say: nothing that can be a key
        return False
