"""Cache replays in plain Python, written from the definitions alone, to check the kernels against.

A run is a list of `Load`s: what one layer asks for in one pass, in the order of the accesses, with
every repeat. Keys are (layer, expert). Nothing here shares code or data layout with tracekit.
"""

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Load:
    """One layer load: its experts token by token, each token's in slot order."""

    turn: int
    number: int  # of the pass
    decode: bool
    layer: int
    experts: tuple

    @property
    def keys(self):
        return [(self.layer, expert) for expert in self.experts]

    @property
    def distinct(self):
        """The keys in the order of their first access."""
        return list(dict.fromkeys(self.keys))

    @property
    def recency(self):
        """The keys in the order of their last access."""
        return list(dict.fromkeys(reversed(self.keys)))[::-1]


@dataclass
class Outcome:
    """Per load: the keys that hit, and the resident bytes after its eviction."""

    hits: list
    resident: list

    def count(self):
        return [len(hits) for hits in self.hits]


class Entry:
    """What is known of a resident key when something has to go."""

    def __init__(self, key, admitted):
        self.key = key
        self.admitted = admitted  # serial number of the admission
        self.accessed = None  # serial number of the last access


def replay(loads, sizes, budget, choose, watch=None):
    """Replay `loads` with `choose(candidates, at)` naming the entry to evict.

    `sizes` maps a layer to the bytes of its experts; `watch(load)` sees each load once, after its
    lookups and before its eviction.
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
        asked = set(load.keys)
        while sum(sizes[layer] for layer, _ in entries) > budget:
            candidates = [entry for key, entry in entries.items() if key not in asked]
            if not candidates:
                break
            del entries[choose(candidates, at).key]
        hits.append(found)
        resident.append(sum(sizes[layer] for layer, _ in entries))
    return Outcome(hits, resident)


def lru(loads, sizes, budget):
    return replay(loads, sizes, budget, lambda c, at: min(c, key=lambda e: e.accessed))


def lfu(loads, sizes, budget):
    touches = {}

    def watch(load):
        for key in load.distinct:
            touches[key] = touches.get(key, 0) + 1

    def choose(candidates, at):
        return min(candidates, key=lambda e: (touches[e.key], e.accessed))

    return replay(loads, sizes, budget, choose, watch)


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


def belady(loads, sizes, budget):
    def next_use(key, at):
        """(load, place in it) of the next use; of equals the one later in the load goes first."""
        for later in range(at + 1, len(loads)):
            if key in loads[later].keys:
                return later, loads[later].recency.index(key)
        return None

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


def random(loads, sizes, budget, state):
    """Random replacement with the generator and the order of entries that tracekit documents.

    `state` is the first state of a 64-bit xorshift (13, 7, 17). Entries a load touched stand behind
    the others; an entry that leaves a place is followed up by the last one before the gap's end.
    """
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


def best(loads, sizes, budget, worth):
    """The most that any schedule of demand evictions collects, by trying them all.

    `worth(load, key)` is what a hit of `key` in `load` is worth. After each load any of the other
    entries may go; what stays must fit the budget, or be the load alone.
    """
    asked = [frozenset(load.keys) for load in loads]

    def weight(keys):
        return sum(sizes[layer] for layer, _ in keys)

    @cache
    def from_here(at, held):
        if at == len(loads):
            return 0
        now = sum(worth(loads[at], key) for key in asked[at] & held)
        others = sorted(held - asked[at])
        kept = []
        for choice in range(2 ** len(others)):
            keys = asked[at] | {key for i, key in enumerate(others) if choice >> i & 1}
            if keys == asked[at] or weight(keys) <= budget:
                kept.append(frozenset(keys))
        return now + max(from_here(at + 1, keys) for keys in kept)

    return from_here(0, frozenset())
