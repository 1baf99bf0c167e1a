"""The oracle of `follow`: what followed what, in plain Python, written from its definition."""

from functools import lru_cache

import numpy as np
from reference import oracle, replay

f32 = np.float32


class Judge:
    """What the tokens so far say of the experts of a layer."""

    def __init__(self, first):
        self.even = f32(len(first.rows[0]) / first.n_expert)
        self.everyone = range(first.n_expert)
        self.fast, self.slow, self.mean = {}, {}, {}
        self.after, self.seen, self.last = {}, {}, {}

    def _token(self, layer, experts):
        for i in self.last.get(layer, ()):
            mean = [self.mean.get((layer, e), self.even) for e in self.everyone]
            row = self.after.setdefault((layer, i), mean)
            self.seen[layer, i] = self.seen.get((layer, i), 0) + 1
            rate = f32(max(0.07, 1 / (self.seen[layer, i] + 1)))
            for e in self.everyone:
                row[e] = row[e] * (f32(1) - rate) + (rate if e in experts else f32(0))
        for e in self.everyone:
            used, key = e in experts, (layer, e)
            for average, share in ((self.fast, f32(0.4)), (self.slow, f32(0.04))):
                average[key] = average.get(key, self.even) * (f32(1) - share) + share * used
        self.last[layer] = experts

    def judge(self, load):
        """Learn the tokens of a load; return the value of each key of its layer."""
        layer, found = load.layer, {}
        for experts in load.rows:
            self._token(layer, experts)
        for e in self.everyone:
            key = layer, e
            a = f32(0.2) * self.fast[key] + (f32(1) - f32(0.2)) * self.slow[key]
            total = f32(0)
            for i in self.last[layer]:
                total += self.after[layer, i][e] if (layer, i) in self.after else self.even
            q = min(total / f32(len(self.last[layer])), f32(1))
            self.mean[key] = a
            found[key] = q + (f32(1) - q) * (a / (f32(1) + a))
        return found


@lru_cache(maxsize=4)
def judged(loads):
    """Return what is judged after each load; it does not depend on what is resident."""
    judge = Judge(loads[0]) if loads else None
    return [judge.judge(load) for load in loads]


class Follower:
    """The values of the keys while a run goes on.

    Attributes
    ----------
    value : dict
        Of each key (layer, expert) of a layer that has run, its chance of use soon.
    """

    def __init__(self, loads, sizes):
        self.order = sorted(sizes)
        self.judged = iter(judged(tuple(loads)))
        self.value = {}
        self.layer = None

    def watch(self, load):
        """See a load after its lookups."""
        self.layer = load.layer
        self.value |= next(self.judged)

    def worth(self, key):
        """What a key is worth after the last load: the least goes first, of equals the furthest."""
        between = (self.order.index(key[0]) - self.order.index(self.layer) - 1) % len(self.order)
        return self.value[key] * f32(2 ** (-between / len(self.order))), -between


@oracle("follow")
def follow(loads, sizes, budget):
    follower = Follower(loads, sizes)

    def choose(candidates, at):
        return min(candidates, key=lambda entry: (*follower.worth(entry.key), entry.accessed))

    return replay(loads, sizes, budget, choose, follower.watch)
