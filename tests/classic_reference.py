"""Oracles of the classic policies, written from their papers, like those of `reference`.

A cache is plain lists of keys, the one that came or was touched longest ago first.
"""

from reference import Outcome, oracle, replay


def bytes_of(keys, sizes):
    return sum(sizes[layer] for layer, _ in keys)


@oracle("arc")
def arc(loads, sizes, budget):
    t1, t2, b1, b2 = [], [], [], []
    target = 0
    out = Outcome([], [])
    for load in loads:
        out.hits.append([key for key in load.recency if key in t1 or key in t2])
        once, again, from_b2 = [], [], False
        for key in load.recency:
            size = sizes[key[0]]
            ghosts = bytes_of(b1, sizes), bytes_of(b2, sizes)
            if key in b1:
                target = min(target + size * max(1, ghosts[1] / ghosts[0]), budget)
            if key in b2:
                target = max(target - size * max(1, ghosts[0] / ghosts[1]), 0)
            if key not in t1 and key not in t2:
                from_b2 = key in b2
            known = [keys for keys in (t1, t2, b1, b2) if key in keys]
            for keys in known:
                keys.remove(key)
            (again if known else once).append(key)
        if load.bypass:
            t1 += once
            t2 += again
            once, again = [], []
        while t1 + t2 and bytes_of(t1 + t2 + once + again, sizes) > budget:
            in_t1 = bytes_of(t1, sizes)
            if t1 and (not t2 or in_t1 > target or (from_b2 and in_t1 == target)):
                b1.append(t1.pop(0))
            else:
                b2.append(t2.pop(0))
        t1 += once
        t2 += again
        while b1 and bytes_of(t1 + b1, sizes) > budget:
            b1.pop(0)
        while b2 and bytes_of(t1 + t2 + b1 + b2, sizes) > 2 * budget:
            b2.pop(0)
        out.resident.append(bytes_of(t1 + t2, sizes))
    return out


class Queues:
    """The three queues of S3-FIFO, with the search for a victim step by step."""

    def __init__(self, sizes, budget):
        self.sizes = sizes
        self.budget = budget
        self.small, self.main, self.ghost = [], [], []
        self.uses = {}
        self.in_hand = []  # what may not be evicted
        self.coming = []  # what is read and stands in no queue yet

    @property
    def used(self):
        return bytes_of(self.small + self.main + self.coming, self.sizes)

    def admit(self):
        for key in self.coming:
            if key in self.ghost:
                self.ghost.remove(key)
                self.main.append(key)
            else:
                self.small.append(key)
            self.uses[key] = 0
        self.coming = []

    def evictable(self, queue):
        return [key for key in queue if key not in self.in_hand]

    def make_room(self):
        while self.used > self.budget and self.evictable(self.small + self.main):
            has_its_tenth = 10 * bytes_of(self.small, self.sizes) >= self.budget
            if self.evictable(self.small) and (has_its_tenth or not self.evictable(self.main)):
                self.evict_small()
            else:
                self.evict_main()

    def evict_small(self):
        while self.evictable(self.small) and self.used > self.budget:
            key = self.evictable(self.small)[0]
            self.small.remove(key)
            if self.uses[key] <= 1:
                self.ghost.append(key)
                while 10 * bytes_of(self.ghost, self.sizes) > 9 * self.budget:
                    self.ghost.pop(0)
                return
            self.uses[key] = 0
            self.main.append(key)
            if 10 * bytes_of(self.main, self.sizes) > 9 * self.budget:
                self.evict_main()

    def evict_main(self):
        while True:
            key = self.evictable(self.main)[0]
            self.main.remove(key)
            if not self.uses[key]:
                return
            self.uses[key] -= 1
            self.main.append(key)


@oracle("s3-fifo")
def s3_fifo(loads, sizes, budget):
    queues = Queues(sizes, budget)
    out = Outcome([], [])
    for load in loads:
        found = [key for key in load.distinct if key in queues.small + queues.main]
        for key in found:
            queues.uses[key] = min(queues.uses[key] + 1, 3)
        queues.coming = [key for key in load.distinct if key not in found]
        queues.in_hand = load.protected
        if load.bypass:
            queues.admit()
        queues.make_room()
        queues.admit()
        out.hits.append(found)
        out.resident.append(queues.used)
    return out


@oracle("lrfu", half_life=[0.01, 0.5, 3.0, 16.0], forgets=[True, False])
def lrfu(loads, sizes, budget, half_life, forgets):
    worth = {}  # of each key, at the load that used it last
    last = {}
    now = -1

    def decayed(key):
        return worth[key] * 0.5 ** ((now - last[key]) / len(sizes) / half_life)

    def watch(load):
        nonlocal now
        now += 1
        for key in load.distinct:
            worth[key] = 1 + (decayed(key) if key in last else 0)
            last[key] = now

    def choose(candidates, at):
        victim = min(candidates, key=lambda entry: (decayed(entry.key), entry.accessed))
        if forgets:
            del last[victim.key]
        return victim

    return replay(loads, sizes, budget, choose, watch)


def sparing(loads, is_spared):
    """LRU that evicts what `is_spared(key, load)` says only where nothing else may go."""

    def choose(candidates, at):
        rest = [entry for entry in candidates if not is_spared(entry.key, loads[at])]
        return min(rest or candidates, key=lambda entry: entry.accessed)

    return choose


@oracle("heat", hits=[0, 1, 2, 4])
def heat(loads, sizes, budget, hits):
    held, found = set(), {}  # what is resident, and its hits since it was read

    def watch(load):
        for key in load.distinct:
            found[key] = found[key] + 1 if key in held else 0
            held.add(key)

    choose = sparing(loads, lambda key, load: found[key] > hits)

    def evict(candidates, at):
        victim = choose(candidates, at)
        held.remove(victim.key)
        return victim

    return replay(loads, sizes, budget, evict, watch)


@oracle("pin", share=[0.0, 0.3, 1.0, 0.5])
def pin(loads, sizes, budget, share):
    def pinned(load):
        of_layer = {}
        for (layer, _), n in load.uses:
            of_layer[layer] = of_layer.get(layer, 0) + n
        left, chosen = int(share * budget), set()
        for key, n in sorted(
            load.uses,
            key=lambda use: (-use[1] / (of_layer[use[0][0]] or 1) / sizes[use[0][0]], use[0]),
        ):
            if n and sizes[key[0]] <= left:
                chosen.add(key)
                left -= sizes[key[0]]
        return chosen

    return replay(loads, sizes, budget, sparing(loads, lambda key, load: key in pinned(load)))


@oracle("lfu-da", forgets=[True, False])
def lfu_da(loads, sizes, budget, forgets):
    touches, value = {}, {}
    age = 0

    def watch(load):
        for key in load.distinct:
            touches[key] = touches.get(key, 0) + 1
            value[key] = touches[key] + age

    def choose(candidates, at):
        nonlocal age
        victim = min(candidates, key=lambda entry: (value[entry.key], entry.accessed))
        age = max(age, value[victim.key])
        if forgets:
            del touches[victim.key]
        return victim

    return replay(loads, sizes, budget, choose, watch)
