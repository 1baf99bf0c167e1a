"""A cache policy of one's own: ``tracekit replay run.trace --policy ring_policy:Ring``."""

from tracekit.policies import PlainPolicy


class Ring(PlainPolicy):
    """Layers run in a ring, so the layer that has just run comes round last."""

    name = "ring"
    summary = "evicts an expert of the layer that comes round last"

    def start(self, batches):
        self.n_layers, self.n_expert = len(batches.expert_bytes), batches.n_expert

    def touch(self, key, now, hit):
        self.layer = key // self.n_expert

    def victim(self, evictable):
        return max(
            evictable, key=lambda key: (key // self.n_expert - self.layer - 1) % self.n_layers
        )
