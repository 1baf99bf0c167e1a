"""A scorer of predictors in plain Python, one routing at a time; shares no code with the real one."""

import math

import numpy as np


def named_by_score(scores, count):
    """Ids of the `count` best scores, ties to the lower id."""
    order = sorted(range(len(scores)), key=lambda e: (-scores[e], e))
    return [e for e in order if scores[e] > -math.inf][:count]


def selection(run, layer, logits):
    """What the model ranks: gate, bias, groups; written from the definition."""
    model = run.facts
    logits = [float(x) for x in logits]
    gates = {
        "softmax": lambda: [math.exp(x) / sum(math.exp(y) for y in logits) for x in logits],
        "sigmoid": lambda: [1 / (1 + math.exp(-x)) for x in logits],
        "sqrt-softplus": lambda: [math.sqrt(math.log1p(math.exp(x))) for x in logits],
        "logits": lambda: logits,
    }[model.gating]()
    if run.selection_bias is not None:
        gates = [g + float(b) for g, b in zip(gates, run.selection_bias[layer], strict=True)]
    if model.n_group > 1:
        size = len(gates) // model.n_group
        group = [gates[g * size : (g + 1) * size] for g in range(model.n_group)]
        worth = [sum(sorted(x, reverse=True)[:2]) for x in group]
        best = sorted(range(model.n_group), key=lambda g: (-worth[g], g))[: model.n_group_used]
        gates = [x if e // size in best else -math.inf for e, x in enumerate(gates)]
    return gates


def product(matrix, vector):
    """Router matrix times gate input."""
    return [sum(float(a) * float(b) for a, b in zip(row, vector, strict=True)) for row in matrix]


class Reference:
    """Names experts for routing (token t, layer) of a toy run; None where it cannot."""

    def __init__(self, run):
        self.run = run

    def _gated(self, layer, vector):
        return selection(self.run, layer, product(self.run.matrix[layer], vector))

    def stale_gate(self, t, layer, horizon):
        if layer < horizon:
            return None
        return self._gated(layer, self.run.gate_input[t, layer - horizon])

    def stale_gate_renorm(self, t, layer, horizon):
        if layer < horizon:
            return None
        source = layer - horizon
        undone, applied = self.run.norm_weight[source], self.run.norm_weight[layer]
        stale = self.run.gate_input[t, source]
        vector = [float(stale[i]) / float(undone[i]) * float(applied[i]) for i in range(len(stale))]
        return self._gated(layer, vector)

    def ctrl(self, t, layer, horizon):
        return self._gated(layer, self.run.gate_input[t, layer])

    def embedding_gate(self, t, layer, horizon):
        vector = [float(x) for x in self.run.embedding[t]]
        rms = math.sqrt(sum(x * x for x in vector) / len(vector) + self.run.facts.norm_eps)
        weight = self.run.norm_weight[layer]
        return self._gated(layer, [x / rms * float(w) for x, w in zip(vector, weight, strict=True)])

    def prev_token(self, t, layer, horizon):
        if t == 0 or self.run.turn[t - 1] != self.run.turn[t]:
            return None
        scores = [-math.inf] * self.run.facts.n_expert
        for slot, expert in enumerate(self.run.experts[t - 1, layer]):
            scores[expert] = -slot
        return scores

    def _others(self, t):
        return [u for u in range(len(self.run.turn)) if self.run.turn[u] != self.run.turn[t]]

    def static_hot(self, t, layer, horizon):
        counts = [0] * self.run.facts.n_expert
        for u in self._others(t):
            for expert in self.run.experts[u, layer]:
                counts[expert] += 1
        return counts

    def token_table(self, t, layer, horizon):
        others = self._others(t)
        same = [u for u in others if self.run.token[u] == self.run.token[t]]
        hot = self.static_hot(t, layer, horizon)
        counts = [c / len(others) for c in hot]
        for u in same:
            for expert in self.run.experts[u, layer]:
                counts[expert] += 1
        return [float(np.float32(c / (len(same) + 1))) for c in counts]

    def layer_lag(self, t, layer, horizon):
        if layer < horizon:
            return None
        common = {}
        for lag in range(horizon, layer + 1):
            common[lag] = 0
            for u in self._others(t):
                there = set(self.run.experts[u, layer - lag].tolist())
                common[lag] += sum(int(e) in there for e in self.run.experts[u, layer])
        lag = min(common, key=lambda x: (-common[x], x))
        scores = [-math.inf] * self.run.facts.n_expert
        for slot, expert in enumerate(self.run.experts[t, layer - lag]):
            scores[expert] = -slot
        return scores


def score(run, predictor, horizon, named):
    """Score a predictor on a toy run.

    Returns
    -------
    dict of int to dict
        By layer: routings, unscored, hits (at k), exact, recall and mass (by number named).
    """
    guess = getattr(Reference(run), predictor.replace("-", "_"))
    k = run.facts.top_k
    result = {}
    for layer in range(run.experts.shape[1]):
        row = {"routings": 0, "unscored": 0, "hits": 0, "exact": 0}
        row |= {"found": dict.fromkeys(named, 0), "mass": dict.fromkeys(named, 0.0)}
        row["names"] = {}
        for t in range(len(run.turn)):
            scores = guess(t, layer, horizon)
            if scores is None:
                row["unscored"] += 1
                continue
            row["routings"] += 1
            selected = [int(e) for e in run.experts[t, layer]]
            weights = [float(w) for w in run.weights[t, layer]]
            first = named_by_score(scores, k)
            row["names"][t] = first
            row["hits"] += len(set(first) & set(selected))
            row["exact"] += set(first) == set(selected)
            for m in named:
                names = named_by_score(scores, m)
                inside = [e in names for e in selected]
                row["found"][m] += sum(inside)
                covered = sum(w for w, i in zip(weights, inside, strict=True) if i)
                row["mass"][m] += covered / sum(weights)
        result[layer] = row
    return result
