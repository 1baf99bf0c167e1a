"""Oracles: each policy's rule in plain Python, written from its definition alone.

A run is a list of `Load`s: what one layer asks for in one pass, in the order of the accesses, with
every repeat. Keys are (layer, expert). Nothing here shares code or data layout with tracekit. Every
registered policy has an oracle: ``@oracle(NAME)`` files it. Oracles of policies that act on a
prediction or leave experts out are in `acting_reference`.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache, cached_property

import numpy as np


@dataclass(frozen=True)
class Load:
    """One layer load: its experts token by token, each token's in slot order."""

    turn: int
    number: int  # of the pass
    decode: bool
    layer: int
    experts: tuple
    rows: tuple = ()  # the same, a tuple for each token
    n_expert: int = 0  # of the model
    weights: tuple = ()  # of the experts of a decoded token
    guess: tuple = ()  # the keys predicted for the next load, best first
    guess_weights: tuple = ()
    uses: tuple = ()  # (key, how often it was used elsewhere), each once
    bypass: bool = False  # what it touched may be dropped at once

    @cached_property
    def keys(self):
        return [(self.layer, expert) for expert in self.experts]

    @cached_property
    def distinct(self):
        """The keys in the order of their first access."""
        return list(dict.fromkeys(self.keys))

    @property
    def protected(self):
        """The keys that may not go after it."""
        return [] if self.bypass else self.distinct

    @cached_property
    def recency(self):
        """The keys in the order of their last access."""
        return list(dict.fromkeys(reversed(self.keys)))[::-1]


@dataclass
class Outcome:
    """What a policy did, load by load, and its counters."""

    hits: list  # the keys that hit
    resident: list  # bytes after the eviction, and after reading ahead
    lookups: list | None = None  # the keys looked up; None: all
    read: list | None = None  # bytes read; None: those of the misses
    prefetched: list | None = None  # hits due to a read ahead
    counters: dict = field(default_factory=dict)

    def count(self):
        return [len(hits) for hits in self.hits]


@dataclass
class Limits:
    """What a bound proves: at most so many hits, at least so many bytes."""

    hits: int
    hits_decode: int
    read_bytes: int
    read_bytes_decode: int


@dataclass(frozen=True)
class Oracle:
    """A rule in plain Python, and the parameters to try it at.

    Attributes
    ----------
    replay : callable
        ``replay(loads, sizes, budget, **params)`` returns an `Outcome`, or the `Limits` of a bound;
        `sizes` maps a layer to the bytes of one of its experts.
    params : dict
        Values of each parameter, or a function that gives them for a model's top k. A long run is
        tried at the last ones.
    """

    replay: Callable
    params: dict


ORACLES = {}


def oracle(name, **params):
    """Decorator: file an oracle under the name of its policy, with parameter values to try."""

    def file(replay):
        ORACLES[name] = Oracle(replay, params)
        return replay

    return file


class Entry:
    """What is known of a resident key when something has to go."""

    def __init__(self, key, admitted):
        self.key = key
        self.admitted = admitted  # serial number of the admission
        self.accessed = None  # serial number of the last access


def replay(loads, sizes, budget, choose, watch=None):
    """Replay `loads` with `choose(candidates, at)`, which returns the entry to evict.

    `watch(load)` sees each load once, after its lookups and before its eviction.
    """
    entries, hits, resident = {}, [], []
    serial = 0
    for at, load in enumerate(loads):
        found = [key for key in load.distinct if key in entries]
        for key in load.keys:
            serial += 1
            if key not in entries:
                entries[key] = Entry(key, serial)
            entries[key].accessed = serial
        if watch:
            watch(load)
        while sum(sizes[layer] for layer, _ in entries) > budget:
            candidates = [entry for key, entry in entries.items() if key not in load.protected]
            if not candidates:
                break
            del entries[choose(candidates, at).key]
        hits.append(found)
        resident.append(sum(sizes[layer] for layer, _ in entries))
    return Outcome(hits, resident)


@oracle("lru")
def lru(loads, sizes, budget):
    return replay(loads, sizes, budget, lambda c, at: min(c, key=lambda e: e.accessed))


@oracle("lfu")
def lfu(loads, sizes, budget):
    touches = {}

    def watch(load):
        for key in load.distinct:
            touches[key] = touches.get(key, 0) + 1

    def choose(candidates, at):
        return min(candidates, key=lambda e: (touches[e.key], e.accessed))

    return replay(loads, sizes, budget, choose, watch)


@oracle("ring")
def ring(loads, sizes, budget):
    order = sorted(sizes)
    last_load = {}  # of each key, the index of the load that touched it last
    now = -1

    def watch(load):
        nonlocal now
        now += 1
        for key in load.distinct:
            last_load[key] = now

    def age(key):
        return sum(load.layer == key[0] for load in loads[last_load[key] + 1 : now + 1])

    def until_it_runs(key, at):
        """Loads of a complete round until the layer of `key` is next."""
        steps, place = 1, (order.index(loads[at].layer) + 1) % len(order)
        while order[place] != key[0]:
            steps, place = steps + 1, (place + 1) % len(order)
        return steps

    def choose(candidates, at):
        return min(candidates, key=lambda e: (-age(e.key), -until_it_runs(e.key, at), e.accessed))

    return replay(loads, sizes, budget, choose, watch)


@oracle("belady")
def belady(loads, sizes, budget):
    uses = {}  # of each key, the loads that ask for it
    for at, load in enumerate(loads):
        for key in load.distinct:
            uses.setdefault(key, []).append(at)

    def next_use(key, at):
        """(load, place in it) of the next use; of equals the one later in the load goes first."""
        after = bisect_right(uses[key], at)
        if after == len(uses[key]):
            return None
        later = uses[key][after]
        return later, loads[later].recency.index(key)

    def choose(candidates, at):
        finished = [e for e in candidates if next_use(e.key, at) is None]
        if finished:
            return min(finished, key=lambda e: e.admitted)
        return max(candidates, key=lambda e: next_use(e.key, at))

    return replay(loads, sizes, budget, choose)


def in_shares(policy):
    """The same policy on each layer alone, the budget in equal whole-byte shares."""

    def shared(loads, sizes, budget):
        hits = [None] * len(loads)
        change = [0] * len(loads)
        for layer in sizes:
            mine = [i for i, load in enumerate(loads) if load.layer == layer]
            alone = policy([loads[i] for i in mine], sizes, budget // len(sizes))
            before = 0
            for i, found, resident in zip(mine, alone.hits, alone.resident, strict=True):
                hits[i] = found
                change[i] = resident - before
                before = resident
        resident, total = [], 0
        for step in change:
            total += step
            resident.append(total)
        return Outcome(hits, resident)

    return shared


oracle("layer-lru")(in_shares(lru))
oracle("layer-lfu")(in_shares(lfu))


@oracle("random", seed=[0, 1])
def random(loads, sizes, budget, seed):
    """Random replacement with the generator and the order of entries that tracekit documents.

    The generator is a 64-bit xorshift (13, 7, 17). Entries a load touched stand behind the others;
    an entry that leaves a place is followed up by the last one before the gap's end.
    """
    state = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]) | 1
    free, hits, resident = [], [], []
    mask = 2**64 - 1
    for load in loads:
        found, touched = [], []
        for key in load.recency:
            if key in free:
                found.append(key)
                place, last = free.index(key), free.pop()
                if place < len(free):
                    free[place] = last
                touched.insert(0, key)
        touched += [key for key in load.recency if key not in found]
        if load.bypass:
            free, touched = free + touched, []
        while free and sum(sizes[layer] for layer, _ in free + touched) > budget:
            state ^= (state << 13) & mask
            state ^= state >> 7
            state ^= (state << 17) & mask
            place, last = (state >> 32) * len(free) >> 32, free.pop()
            if place < len(free):
                free[place] = last
            if touched:
                touched.insert(0, touched.pop())
        free += touched
        hits.append(found)
        resident.append(sum(sizes[layer] for layer, _ in free))
    return Outcome(hits, resident)


def in_single_bytes(loads, sizes):
    """The same loads of experts that are each cut into entries of one byte."""
    return [
        replace(
            load,
            experts=tuple((e, byte) for e in load.experts for byte in range(sizes[load.layer])),
        )
        for load in loads
    ]


@oracle("bound")
def bound(loads, sizes, budget):
    """Schedules that can be run: no bound may say less, and of one size none may say more."""
    hits, saved = kept_by_furthest_end(loads, sizes, budget, decode_only=False)
    hits_decode, saved_decode = kept_by_furthest_end(loads, sizes, budget, decode_only=True)
    asked = sum(sizes[load.layer] * len(load.distinct) for load in loads)
    asked_decode = sum(sizes[load.layer] * len(load.distinct) for load in loads if load.decode)
    return Limits(hits, hits_decode, asked - saved, asked_decode - saved_decode)


def kept_by_furthest_end(loads, sizes, budget, decode_only):
    """Keep what is wanted again; where room is short, what is wanted last goes."""
    uses = {}
    for at, load in enumerate(loads):
        for key in load.distinct:
            uses.setdefault(key, []).append(at)
    waiting, hits, saved = {}, 0, 0  # the next use of each key that is kept
    for at, load in enumerate(loads):
        for key in load.distinct:
            if waiting.pop(key, None) is not None:
                hits += 1
                saved += sizes[load.layer]
        following = {}
        for key in load.distinct:
            later = next((use for use in uses[key] if use > at), None)
            if later is not None and (loads[later].decode or not decode_only):
                following[key] = later
        if load.bypass:
            waiting, following = waiting | following, {}
        room = max(budget - sizes[load.layer] * len(load.protected), 0)
        while sum(sizes[layer] for layer, _ in waiting) > room:
            del waiting[max(waiting, key=waiting.get)]
        waiting |= following
    return hits, saved


def best(loads, sizes, budget, worth):
    """The most that any schedule of demand evictions collects, by trying them all.

    `worth(load, key)` is what a hit of `key` in `load` is worth. After each load any entry may go
    that the load does not protect; what stays must fit the budget, or be what is protected alone.
    """
    asked = [frozenset(load.keys) for load in loads]
    stays = [frozenset(load.protected) for load in loads]

    def weight(keys):
        return sum(sizes[layer] for layer, _ in keys)

    @cache
    def from_here(at, held):
        if at == len(loads):
            return 0
        now = sum(worth(loads[at], key) for key in asked[at] & held)
        others = sorted((held | asked[at]) - stays[at])
        kept = []
        for choice in range(2 ** len(others)):
            keys = stays[at] | {key for i, key in enumerate(others) if choice >> i & 1}
            room = budget - weight(keys)
            # To keep less than there is room for is never better.
            is_full = all(sizes[key[0]] > room for key in others if key not in keys)
            if is_full and (keys == stays[at] or room >= 0):
                kept.append(frozenset(keys))
        return now + max(from_here(at + 1, keys) for keys in kept)

    return from_here(0, frozenset())
