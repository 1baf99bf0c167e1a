"""Experts in memory within a budget of bytes: who stays, who goes, and what it costs.

The accounting is that of a replay: a batch is what one layer selects in one pass, each of its
distinct experts is looked up once, a repeat only promotes, a miss is admitted, and afterwards the
least recently used entries that the batch did not touch go until the rest fits the budget.
"""

from collections import OrderedDict
from dataclasses import dataclass, fields

import numpy as np

from tracekit.trace.schema import HIT, MISS
from tracekit_engine.lanes import Lanes, Read
from tracekit_engine.memory import FileMemory, may_move_pages
from tracekit_engine.model_file import StoredTensor


@dataclass
class StoreTotals:
    """What the store did since the last `ExpertStore.take_totals`.

    Attributes
    ----------
    lookups, hits : int
        Of distinct experts of a batch.
    read_bytes, moved_bytes : int
        The missed experts' own bytes; what was read for them, which under direct I/O is more.
    io_ms, stall_ms : float
        Time spent reading, summed over lanes; time the computation waited for it.
    """

    lookups: int = 0
    hits: int = 0
    read_bytes: int = 0
    moved_bytes: int = 0
    io_ms: float = 0.0
    stall_ms: float = 0.0

    def add(self, other: "StoreTotals") -> None:
        """Add another stretch's totals."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class ExpertStore:
    """A least-recently-used cache of (layer, expert) over all layers of a model.

    Parameters
    ----------
    experts : dict of int to list of StoredTensor
        The stacked weights of each MoE layer.
    memory : list of FileMemory or None
    lanes : Lanes
    budget : int
        Bytes of experts that stay. A batch larger than the budget is held whole until the next.
    """

    def __init__(
        self,
        experts: dict[int, list[StoredTensor]],
        memory: list[FileMemory | None],
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
        self._moves_pages = may_move_pages(
            sum(tensor.shape[-1] for tensors in experts.values() for tensor in tensors)
        )
        self._resident: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.resident_bytes = 0
        self._totals = StoreTotals()

    def load(self, layer: int, selected: np.ndarray) -> np.ndarray:
        """Have the selected experts of a layer in memory when this returns.

        Parameters
        ----------
        selected : ndarray, int [n_tokens, top_k]

        Returns
        -------
        ndarray, uint8 [n_tokens, top_k]
            ``MISS`` or ``HIT``, of an expert that the batch repeats ``HIT``.

        Raises
        ------
        TracekitError
            A read failed.
        """
        size = self._sizes[layer]
        residency = np.full(selected.shape, HIT, np.uint8)
        outcome = residency.reshape(-1)
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
                outcome[position] = MISS
            touched.add(expert)
        # Evicting what must go before reading leaves the same entries as evicting afterwards,
        # and the memory never holds both.
        freed = self._evict(layer, touched)
        try:
            self._fetch(layer, missed, freed)
        except BaseException:
            # What did not come in is not resident, or later passes would compute with nothing.
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
        """Drop what must go; return the slices whose memory is free."""
        freed: list[Read] = []
        while self.resident_bytes > self.budget:
            oldest = next(iter(self._resident))
            if oldest[0] == layer and oldest[1] in touched:
                break  # whatever the batch touched is newer than the rest: nothing else is left
            del self._resident[oldest]
            self.resident_bytes -= self._sizes[oldest[0]]
            freed += self._slices(*oldest)
        return freed

    def _fetch(self, layer: int, missed: list[int], freed: list[Read]) -> None:
        """Read the missed experts, into freed memory as far as there is any."""
        slices = [each for expert in missed for each in self._slices(layer, expert)]
        reused = min(len(slices), len(freed)) if self._moves_pages else 0
        for (file, start, stop), (donor, *given) in zip(slices, freed[:reused], strict=False):
            self._memory[file].take_over(start, stop, self._memory[donor], tuple(given))
        for file, start, stop in slices[reused:]:
            self._memory[file].occupy(start, stop)
        for file, start, stop in freed[reused:]:
            self._memory[file].release(start, stop)
        if slices:
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
