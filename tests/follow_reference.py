"""The oracle of `follow`: what followed what, in plain Python, written from its definition."""

import numpy as np
from reference import oracle, replay

f32 = np.float32


class Follower:
    """What the tokens so far say of every expert.

    Attributes
    ----------
    value : dict
        Of each key (layer, expert), its chance of use soon.
    """

    def __init__(self, loads, sizes):
        self.order = sorted(sizes)
        self.even = f32(len(loads[0].rows[0]) / loads[0].n_expert) if loads else f32(0)
        self.everyone = range(loads[0].n_expert if loads else 0)
        keys = [(layer, e) for layer in self.order for e in self.everyone]
        self.fast, self.slow, self.mean, self.value = (
            dict.fromkeys(keys, self.even) for _ in range(4)
        )
        self.after, self.seen, self.last = {}, {}, {}
        self.layer = None

    def _token(self, layer, experts):
        for i in self.last.get(layer, ()):
            row = self.after.setdefault((layer, i), [self.mean[layer, e] for e in self.everyone])
            self.seen[layer, i] = self.seen.get((layer, i), 0) + 1
            rate = f32(max(0.07, 1 / (self.seen[layer, i] + 1)))
            for e in self.everyone:
                row[e] = row[e] * (f32(1) - rate) + (rate if e in experts else f32(0))
        for e in self.everyone:
            used, key = e in experts, (layer, e)
            self.fast[key] = self.fast[key] * (f32(1) - f32(0.4)) + f32(0.4) * used
            self.slow[key] = self.slow[key] * (f32(1) - f32(0.04)) + f32(0.04) * used
        self.last[layer] = experts

    def watch(self, load):
        """Learn the tokens of a load, and judge the experts of its layer."""
        self.layer = layer = load.layer
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
            self.value[key] = q + (f32(1) - q) * (a / (f32(1) + a))

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
