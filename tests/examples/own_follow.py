"""`follow` in plain Python: evict what is least likely to be used soon, by what followed what."""

import numpy as np

from tracekit.policies import PlainPolicy

F = np.float32


class OwnFollow(PlainPolicy):
    name = "own-follow"
    summary = "follow, written in plain Python"

    def start(self, batches):
        self.n_layers, self.n_expert = len(batches.expert_bytes), batches.n_expert
        shape = self.n_layers, self.n_expert
        even = F(batches.top_k / batches.n_expert)
        self.fast, self.slow, self.average, self.value = (np.full(shape, even) for _ in range(4))
        self.table = np.full((*shape, self.n_expert), even)  # [layer, expert, next token's expert]
        self.learned = np.zeros(shape, int)
        self.last = [None] * self.n_layers  # the experts of each layer's last token

    def end_batch(self, layer, rows):
        self.layer = layer
        fast, slow, table = self.fast[layer], self.slow[layer], self.table[layer]
        for experts in rows:
            for i in self.last[layer] or ():
                if self.learned[layer, i] == 0:
                    table[i] = self.average[layer]
                rate = F(max(0.07, 1 / (self.learned[layer, i] + 2)))
                self.learned[layer, i] += 1
                table[i] *= 1 - rate
                table[i, experts] += rate
            fast *= 1 - F(0.4)
            slow *= 1 - F(0.04)
            fast[experts] += F(0.4)
            slow[experts] += F(0.04)
            self.last[layer] = experts
        average = self.average[layer] = F(0.2) * fast + (1 - F(0.2)) * slow
        chance = np.minimum(sum(table[i] for i in self.last[layer]) / F(len(self.last[layer])), 1)
        self.value[layer] = chance + (1 - chance) * (average / (1 + average))

    def victim(self, evictable):
        return min(evictable, key=self.worth)  # of equals the first: the one touched longest ago

    def worth(self, key):
        layer, expert = divmod(key, self.n_expert)
        away = (layer - self.layer - 1) % self.n_layers  # so many layers run before its own
        return self.value[layer, expert] * F(2.0 ** (-away / self.n_layers)), -away
