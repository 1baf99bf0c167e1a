"""Experts in memory within a budget of bytes: which stay, which are evicted, and what that costs.

The accounting is that of a replay. A batch is what one layer selects in one pass. Each of its
distinct experts is looked up once; a repeat only promotes. A miss is admitted. Afterwards the least
recently used entries that the batch did not touch are evicted until the rest fits the budget.
"""

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from tracekit.trace.schema import HIT, MISS
from tracekit_engine import pages
from tracekit_engine.gguf_header import StoredTensor
from tracekit_engine.lanes import Lanes, Read
from tracekit_engine.memory import FileMemory


@dataclass
class StoreTotals:
    """What the store did since the last `ExpertStore.take_totals`.

    Attributes
    ----------
    lookups, hits : int
        Each distinct expert of a batch counts once.
    read_bytes : int
        Bytes of the missed experts.
    moved_bytes : int
        Bytes read for them; direct I/O reads whole pages, which are more.
    io_ms : float
        Time spent reading, summed over lanes.
    stall_ms : float
        Time that the computation waited for reads.
    evict_ms : float
        Time that it waited, outside reads, for room to be made: entries evicted, memory released or
        given to those that follow.
    """

    lookups: int = 0
    hits: int = 0
    read_bytes: int = 0
    moved_bytes: int = 0
    io_ms: float = 0.0
    stall_ms: float = 0.0
    evict_ms: float = 0.0

    def add(self, other: "StoreTotals") -> None:
        """Add the totals of another period."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class ExpertStore:
    """A least-recently-used cache of (layer, expert) over all layers of a model.

    Parameters
    ----------
    experts : dict of int to list of StoredTensor
        The stacked weights of each MoE layer.
    memory : mapping of int to FileMemory
        By a file's index.
    lanes : Lanes
    budget : int
        Bytes of experts that may stay. A batch larger than the budget stays whole until the next.
    """

    def __init__(
        self,
        experts: dict[int, list[StoredTensor]],
        memory: Mapping[int, FileMemory],
        lanes: Lanes,
        budget: int,
    ):
        self.budget = budget
        self._experts = experts
        self._memory = memory
        self._lanes = lanes
        self._sizes = {
            layer: sum(stop - start for start, stop in (tensor.slice(0) for tensor in tensors))
            for layer, tensors in experts.items()
        }
        self._moves_pages = pages.can_move(
            sum(tensor.shape[-1] for tensors in experts.values() for tensor in tensors)
        )
        self._resident: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.resident_bytes = 0
        self._totals = StoreTotals()

    def load(self, layer: int, selected: np.ndarray) -> np.ndarray:
        """Bring the selected experts of a layer into memory and return when all are there.

        Parameters
        ----------
        selected : ndarray, int [n_tokens, top_k]

        Returns
        -------
        ndarray, uint8 [n_tokens, top_k]
            ``MISS`` or ``HIT``; ``HIT`` for an expert that the batch repeats.

        Raises
        ------
        TracekitError
            A read failed.
        """
        size = self._sizes[layer]
        residency = np.full(selected.shape, HIT, np.uint8)
        by_position = residency.reshape(-1)
        touched: set[int] = set()
        missed: list[int] = []
        for position, expert in enumerate(selected.reshape(-1).tolist()):
            key = (layer, expert)
            if key in self._resident:
                self._resident.move_to_end(key)
            else:
                self._resident[key] = None
                self.resident_bytes += size
                missed.append(expert)
                by_position[position] = MISS
            touched.add(expert)
        # Evicting before reading leaves the same entries as evicting afterwards, and the memory
        # never holds both the old and the new ones.
        try:
            started = time.perf_counter()
            slices = self._make_room(layer, touched, missed)
            self._totals.evict_ms += 1e3 * (time.perf_counter() - started)
            self._read(slices)
        except BaseException:
            # A failed read leaves empty memory. Were it resident, later passes would compute with it.
            for expert in missed:
                del self._resident[layer, expert]
                self.resident_bytes -= size
            raise
        self._totals.lookups += len(touched)
        self._totals.hits += len(touched) - len(missed)
        self._totals.read_bytes += len(missed) * size
        return residency

    def take_totals(self) -> StoreTotals:
        """Return the totals since the last call, and start them anew."""
        totals, self._totals = self._totals, StoreTotals()
        return totals

    def _evict(self, layer: int, touched: set[int]) -> list[Read]:
        """Evict until the budget fits; return the slices whose memory is free."""
        freed: list[Read] = []
        while self.resident_bytes > self.budget:
            oldest = next(iter(self._resident))
            if oldest[0] == layer and oldest[1] in touched:
                break  # the batch's own entries are the newest, so no others are left
            del self._resident[oldest]
            self.resident_bytes -= self._sizes[oldest[0]]
            freed += self._slices(*oldest)
        return freed

    def _make_room(self, layer: int, touched: set[int], missed: list[int]) -> list[Read]:
        """Evict, and return the slices of the missed experts, whose memory comes from freed ones."""
        freed = self._evict(layer, touched)
        slices = [each for expert in missed for each in self._slices(layer, expert)]
        reused = min(len(slices), len(freed)) if self._moves_pages else 0
        for (file, start, stop), (donor, first, last) in zip(slices, freed[:reused], strict=False):
            self._memory[file].take_over(start, stop, self._memory[donor], (first, last))
        for file, start, stop in slices[reused:]:
            self._memory[file].occupy(start, stop)
        for file, start, stop in freed[reused:]:
            self._memory[file].release(start, stop)
        return slices

    def _read(self, slices: list[Read]) -> None:
        if not slices:
            return
        try:
            times = self._lanes.read(slices)
        except BaseException:
            for file, start, stop in slices:
                self._memory[file].release(start, stop)
            raise
        self._totals.io_ms += times.io_ms
        self._totals.stall_ms += times.stall_ms
        self._totals.moved_bytes += times.moved_bytes

    def _slices(self, layer: int, expert: int) -> list[Read]:
        return [(tensor.file, *tensor.slice(expert)) for tensor in self._experts[layer]]
