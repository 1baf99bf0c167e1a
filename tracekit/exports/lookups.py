"""The lookups of a trace, chunk by chunk, and when each object is looked up next.

In: a trace. Out: for each lookup its pass, layer and expert. A batch, the experts of all tokens of one
pass at one layer, looks each distinct expert up once; a dropped expert is not looked up. Within a batch
the lookups stand in the order of the experts' last touch: the order of recency that the batch leaves.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tracekit.routing.passes import Columns, whole_passes
from tracekit.trace import Trace

# So many lookups are gathered to a chunk. Each chunk keeps the first lookup of each of its objects.
CHUNK_LOOKUPS = 1 << 20


@dataclass(frozen=True)
class Lookups:
    """Lookups in the order in which they happen.

    Attributes
    ----------
    passes : int32 [n]
    layer : int16 [n]
        The model's own number of the layer.
    expert : uint16 [n]
    """

    passes: np.ndarray
    layer: np.ndarray
    expert: np.ndarray

    def __len__(self) -> int:
        return len(self.passes)


def lookups_of(trace: Trace) -> Iterator[Lookups]:
    """Yield the lookups of a trace in chunks of whole passes.

    Parameters
    ----------
    trace : Trace
    """
    columns = ["layer", "experts", *(["dropped"] if trace.has("dropped") else [])]
    gathered: list[Lookups] = []
    n = 0
    for block in whole_passes(trace, columns):
        gathered.append(_lookups(block, trace.n_expert))
        n += len(gathered[-1])
        if n >= CHUNK_LOOKUPS:
            yield _joined(gathered)
            gathered, n = [], 0
    if n:
        yield _joined(gathered)


def _joined(pieces: list[Lookups]) -> Lookups:
    names = ("passes", "layer", "expert")
    return Lookups(*(np.concatenate([getattr(each, name) for each in pieces]) for name in names))


def _lookups(block: Columns, n_expert: int) -> Lookups:
    layer, passes, experts = block["layer"], block["pass"], block["experts"]
    n_rows, k = experts.shape
    begins = np.ones(n_rows, np.bool_)
    begins[1:] = (layer[1:] != layer[:-1]) | (passes[1:] != passes[:-1])
    batch = np.cumsum(begins)
    looked_up = np.ones((n_rows, k), np.bool_)
    if "dropped" in block:
        looked_up &= block["dropped"] != 1
    # The experts of a routing are distinct: only batches of several routings repeat some.
    together = np.zeros(n_rows, np.bool_)
    together[1:] = ~begins[1:]
    together[:-1] |= ~begins[1:]
    slots = np.flatnonzero((looked_up & together[:, None]).ravel())
    code = batch[slots // k] * np.int64(n_expert) + experts.ravel()[slots]
    # The first sight from the end is the last touch.
    last = len(code) - 1 - np.unique(code[::-1], return_index=True)[1]
    repeated = np.ones(len(code), np.bool_)
    repeated[last] = False
    looked_up.ravel()[slots[repeated]] = False
    row = np.repeat(np.arange(n_rows), np.count_nonzero(looked_up, axis=1))
    return Lookups(passes[row], layer[row], experts[looked_up])


def next_lookups(trace: Trace) -> Iterator[tuple[Lookups, np.ndarray]]:
    """Yield the lookups and where the same object is looked up next.

    The trace is read twice: first to learn where each chunk looks an object up for the first time,
    then chunk by chunk. So no lookup but those of one chunk is in memory.

    Yields
    ------
    lookups : Lookups
    next : int64 [n]
        The place, counted from 0 over the whole trace, of the next lookup of the object; -1: none.
    """
    firsts: list[tuple[np.ndarray, np.ndarray]] = []  # of each chunk: objects, places
    n = 0
    for lookups in lookups_of(trace):
        objects, at = np.unique(object_ids(lookups, trace), return_index=True)
        firsts.append((objects, at + n))
        n += len(lookups)
    after = _firsts_after(firsts)
    n = 0
    for lookups, (objects, _), later in zip(lookups_of(trace), firsts, after, strict=True):
        keys = object_ids(lookups, trace)
        order = np.argsort(keys, kind="stable")
        following = np.empty(len(keys), np.int64)
        of_next = np.append(keys[order][1:] == keys[order][:-1], False)
        following[order[:-1]] = order[1:] + n
        ends = order[~of_next]
        following[ends] = later[np.searchsorted(objects, keys[ends])]
        yield lookups, following
        n += len(lookups)


def object_ids(lookups: Lookups, trace: Trace) -> np.ndarray:
    """Return a number for the expert of each lookup: layer × n_expert + expert, int64 [n]."""
    ids: np.ndarray = lookups.layer.astype(np.int64) * trace.n_expert + lookups.expert
    return ids


def _firsts_after(firsts: list[tuple[np.ndarray, np.ndarray]]) -> list[np.ndarray]:
    """Return, for the objects of each chunk, their first place in the chunks after it; -1: none."""
    every = np.unique(np.concatenate([np.empty(0, np.int64), *(each for each, _ in firsts)]))
    next_at = np.full(len(every), -1, np.int64)
    after = []
    for objects, places in reversed(firsts):
        index = np.searchsorted(every, objects)
        after.append(next_at[index])
        next_at[index] = places
    return after[::-1]
