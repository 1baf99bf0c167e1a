"""A cache policy of one's own: ``tracekit replay run.trace --policy own_ring:OwnRing``."""

from tracekit.policies import PlainPolicy


class OwnRing(PlainPolicy):
    """Evict what the oldest token used; of one token, the layer that comes round last."""

    name = "own-ring"
    summary = "least recent token first; of one token, the layer that comes round last"

    def start(self, batches):
        self.n_layers, self.n_expert = len(batches.expert_bytes), batches.n_expert
        self.last = {}

    def touch(self, key, now, hit):
        self.now, self.layer = now, key // self.n_expert
        self.last[key] = now

    def victim(self, evictable):
        return max(evictable, key=self.priority)

    def priority(self, key):
        age = (self.now - self.last[key]) // self.n_layers
        distance = (key // self.n_expert - self.layer - 1) % self.n_layers
        return age, distance
