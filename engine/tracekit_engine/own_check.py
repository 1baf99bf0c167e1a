"""Whether a finished recording is what an LRU cache of its budget does: the recorder checks itself.

In: the path of a trace that the recorder has closed. Out: what was compared and how much of it differs,
which the trace keeps. The routings are read back from the disk and replayed in plain Python, by the
rules of a cache and not by the store's code. It takes about two microseconds for each selected expert.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tracekit.trace import Trace
from tracekit.trace.agreement import RECORDER_AT_FAULT, Agreement
from tracekit.trace.errors import TracekitError
from tracekit.trace.folder import keep_agreement
from tracekit.trace.schema import HIT, MISS

COUNTS = ("lookups", "hits", "read_bytes")
_PLACE = ("turn", "pass", "step", "layer")


def verify_recording(path: Path, budget: int) -> Agreement:
    """Compare a recording with a replay of LRU at its budget, and keep in it what comes out.

    Parameters
    ----------
    path : Path
        A complete trace, recorded while streaming.
    budget : int
        Of the expert cache, in bytes.

    Raises
    ------
    TraceError
        The trace cannot be read back.
    """
    agreement = compare_with_lru(Trace.open(path, validate=False), budget)
    with suppress(TracekitError):  # a full disk; the trace is whole, and its first reader compares
        keep_agreement(path, agreement)
    return agreement


def compare_with_lru(trace: Trace, budget: int) -> Agreement:
    """Compare what a trace recorded with a replay of LRU; errors are those of `verify_recording`."""
    layers = trace.layer_columns
    sizes = dict(zip(layers["layer"].tolist(), layers["expert_bytes"].tolist(), strict=True))
    cache = _Cache(budget)
    n_lookups = n_mismatched = recorded_hits = hits = 0
    first: dict[str, Any] | None = None
    counts: dict[int, list[int]] = {}
    for number, layer, experts, recorded, place in _batches(trace):
        found = cache.load(layer, sizes[layer], experts)
        n_looked_up = len(found) - found.count(_REPEATED)
        n_missed = found.count(MISS)
        of_pass = counts.setdefault(number, [0, 0, 0])
        of_pass[0] += n_looked_up
        of_pass[1] += n_looked_up - n_missed
        of_pass[2] += n_missed * sizes[layer]
        n_lookups, hits = n_lookups + n_looked_up, hits + n_looked_up - n_missed
        if found == recorded:  # as nearly always
            recorded_hits += n_looked_up - n_missed
            continue
        for slot, (state, was) in enumerate(zip(found, recorded, strict=True)):
            if state == _REPEATED:
                continue
            recorded_hits += was != MISS
            if (state == MISS) != (was == MISS):
                n_mismatched += 1
                first = first or {
                    **place(slot),
                    "recorded": "miss" if was == MISS else "hit",
                    "replayed": "miss" if state == MISS else "hit",
                }
    differing = _differing_passes(trace, counts)
    return Agreement(
        policy="lru",
        budget_bytes=budget,
        n_lookups=n_lookups,
        n_mismatched=n_mismatched,
        n_passes=len(counts),
        n_passes_mismatched=len(differing),
        hits_recorded=recorded_hits,
        hits_replayed=hits,
        first_mismatch=first or (differing[0] if differing else None),
        likely_reason=RECORDER_AT_FAULT if n_mismatched or differing else None,
    )


# What `_Cache.load` says of an expert that the batch had asked for before.
_REPEATED = HIT + 1


@dataclass
class _Cache:
    """A least-recently-used cache that evicts after each batch what the batch did not touch."""

    budget: int
    n_bytes: int = 0
    entries: OrderedDict[int, int] = field(default_factory=OrderedDict)

    def load(self, layer: int, size: int, experts: list[int]) -> list[int]:
        """Look up the experts of a batch; return `MISS`, `HIT` or `_REPEATED` of each."""
        entries, touched = self.entries, set()
        found = []
        for expert in experts:
            key = layer << 16 | expert
            if key in entries:
                entries.move_to_end(key)
                found.append(_REPEATED if key in touched else HIT)
            else:
                entries[key] = size
                self.n_bytes += size
                found.append(MISS)
            touched.add(key)
        while self.n_bytes > self.budget:
            oldest = next(iter(entries))
            if oldest in touched:  # what the batch touched is newest, so no other is left
                break
            self.n_bytes -= entries.pop(oldest)
        return found


# Pass, layer, the experts of all its tokens, their residency, and the place of one of them by its index.
_Batch = tuple[int, int, list[int], list[int], Callable[[int], dict[str, int]]]


def _batches(trace: Trace) -> Iterator[_Batch]:
    """Yield the batches of a trace; a large pass may stand in several blocks of rows."""
    rest: dict[str, np.ndarray] | None = None
    columns = [*_PLACE, "experts", "residency"]
    for block in trace.iter_routing(columns):
        if rest is not None:
            block = {name: np.concatenate((rest[name], block[name])) for name in columns}
        begins = (np.diff(block["pass"]) != 0) | (np.diff(block["layer"]) != 0)
        last = int(np.flatnonzero(begins)[-1]) + 1 if begins.any() else 0
        yield from _whole_batches({name: block[name][:last] for name in columns})
        rest = {name: block[name][last:] for name in columns}
    if rest is not None:
        yield from _whole_batches(rest)


def _whole_batches(rows: dict[str, np.ndarray]) -> Iterator[_Batch]:
    experts, residency = (rows[name].ravel().tolist() for name in ("experts", "residency"))
    k = rows["experts"].shape[1]

    def place(start: int, slot: int) -> dict[str, int]:
        at = start + slot
        return {name: int(rows[name][at // k]) for name in _PLACE} | {"expert": experts[at]}

    begins = (np.diff(rows["pass"]) != 0) | (np.diff(rows["layer"]) != 0)
    starts = np.append(0, np.flatnonzero(begins) + 1)[: len(rows["pass"])]
    numbers, layers = rows["pass"][starts].tolist(), rows["layer"][starts].tolist()
    ends = [*(starts[1:] * k).tolist(), len(experts)]
    for number, layer, start, end in zip(
        numbers, layers, (starts * k).tolist(), ends, strict=False
    ):
        yield number, layer, experts[start:end], residency[start:end], partial(place, start)


def _differing_passes(trace: Trace, counts: dict[int, list[int]]) -> list[dict[str, Any]]:
    """Return the passes whose counts in the table of steps are not those of the replay."""
    steps = trace.steps(["turn", "pass", *COUNTS])
    is_last = np.append(np.diff(steps["pass"]) != 0, True)[: len(steps["pass"])]
    found = []
    for row in np.flatnonzero(is_last).tolist():
        number = int(steps["pass"][row])
        recorded = {name: int(steps[name][row]) for name in COUNTS}
        replayed = dict(zip(COUNTS, counts.get(number, (0, 0, 0)), strict=True))
        if recorded != replayed:
            turn = int(steps["turn"][row])
            found.append({"turn": turn, "pass": number, "recorded": recorded, "replayed": replayed})
    return found
