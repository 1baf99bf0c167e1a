"""Online predictors in plain Python, one routing at a time; shares no code with the real ones.

A token is a dict: its turn, pass, phase, whether it stayed, and its experts by layer. `asked` goes
through a trace and asks about each decoded token at each layer; what it knows then is a plain list of
the tokens that have passed and stayed.
"""

import math
from dataclasses import dataclass

import numpy as np
from predict_reference import named_by_score

WEIGHTS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0, 12.0)


@dataclass
class Run:
    """The tokens of a trace in the order they ran, and its model."""

    tokens: list
    n_layers: int
    n_expert: int
    top_k: int
    matrix: list | None = None  # of each layer, if the trace has routers


def run_of(trace) -> Run:
    """Read a trace row by row."""
    names = ["turn", "pass", "phase", "step", "layer", "experts"]
    names += ["gate_input"] if trace.has("gate_input") else []
    columns = trace.routing(names)
    steps = trace.steps(["pass", "step"])
    stayed = dict(
        zip(
            zip(steps["pass"].tolist(), steps["step"].tolist(), strict=True),
            trace.kept,
            strict=True,
        )
    )
    layers = trace.moe_layers.tolist()
    tokens = {}
    for row in range(len(columns["turn"])):
        turn, number, phase, step, layer = (int(columns[name][row]) for name in names[:5])
        token = tokens.setdefault(
            (number, step),
            {
                "turn": turn,
                "pass": number,
                "step": step,
                "decoded": phase == 1,
                "stayed": bool(stayed[number, step]),
                "experts": {},
                "gate_input": {},
            },
        )
        at = layers.index(layer)
        token["experts"][at] = columns["experts"][row].tolist()
        if "gate_input" in columns:
            token["gate_input"][at] = columns["gate_input"][row].astype(np.float64)
    matrices = [trace.layer_array(layer, "router_matrix") for layer in layers]
    return Run(
        [tokens[key] for key in sorted(tokens)],
        len(layers),
        trace.n_expert,
        trace.top_k,
        matrices,
    )


def average(run, past, layer):
    """A fast and a slow average of what the layer selected, mixed at one to four."""
    start = run.top_k / run.n_expert
    fast, slow = [start] * run.n_expert, [start] * run.n_expert
    for token in past:
        selected = token["experts"].get(layer)
        if selected is None:
            continue
        for e in range(run.n_expert):
            fast[e] = 0.6 * fast[e] + 0.4 * (e in selected)
            slow[e] = 0.96 * slow[e] + 0.04 * (e in selected)
    return [0.2 * f + 0.8 * s for f, s in zip(fast, slow, strict=True)]


def shared(run, one, other, layers):
    """The share of slots that two tokens have in common over `layers`."""
    if one is None or other is None:
        return 0.0
    common = 0
    for layer in layers:
        common += len(set(one["experts"].get(layer, [])) & set(other["experts"].get(layer, [])))
    return common / (run.top_k * len(layers))


def recall(run, past, token, layer, horizon, history=2000, layers=6, sharpness=15.0, habit=0.5):
    """The vote of similar tokens; `past` are those that passed, None: nothing can be said."""
    if not past:
        return None
    voters = [
        (past[i], past[i - 1] if i else None)
        for i in range(max(0, len(past) - history), len(past))
        if layer in past[i]["experts"]
    ]
    if horizon == "token":
        everywhere = range(run.n_layers)
        alike = [shared(run, past[-1], before, everywhere) for _, before in voters]
    else:
        source = layer - horizon
        if source < 0:
            return None
        there = range(max(0, source - layers + 1), source + 1)
        alike = [shared(run, token, voter, there) for voter, _ in voters]
    weights = [math.exp(sharpness * a) for a in alike]
    votes = [0.0] * run.n_expert
    for (voter, _), weight in zip(voters, weights, strict=True):
        for expert in voter["experts"][layer]:
            votes[expert] += weight / sum(weights)
    return [v + habit * a for v, a in zip(votes, average(run, past, layer), strict=True)]


def layer_table(run, past, token, layer, horizon, rate=0.07):
    """The mean of the rows of what the source layer selected."""
    source = layer - horizon
    if not past or source < 0:
        return None
    table, seen = {}, {}
    for i, other in enumerate(past):
        selected = other["experts"].get(layer)
        if selected is None or source not in other["experts"]:
            continue
        for expert in other["experts"][source]:
            if expert not in table:
                table[expert] = average(run, past[:i], layer)
            r = max(rate, 1 / (seen.get(expert, 0) + 2))
            seen[expert] = seen.get(expert, 0) + 1
            table[expert] = [(1 - r) * x + r * (e in selected) for e, x in enumerate(table[expert])]
    now = average(run, past, layer)
    rows = [table.get(expert, now) for expert in token["experts"][source]]
    return [sum(column) / run.top_k for column in zip(*rows, strict=True)]


def recall_gate(run, past, token, layer, horizon, weight, **params):
    """The stale logits and the vote; without a past, the stale logits."""
    if layer < horizon:
        return None
    stale = run.matrix[layer].astype(np.float64) @ token["gate_input"][layer - horizon]
    vote = recall(run, past, token, layer, horizon, **params)
    if vote is None:
        vote = [0.5 * run.top_k / run.n_expert] * run.n_expert
    return [float(s) + weight * v for s, v in zip(stale, vote, strict=True)]


def weight_for(run, held_out_turn, horizon, **params):
    """The weight that names most on the other turns, by votes without the turn."""
    hits = dict.fromkeys(WEIGHTS, 0)
    for past, token in moments(run):
        if token["turn"] == held_out_turn:
            continue
        known = [other for other in past if other["turn"] != held_out_turn]
        for layer in range(horizon, run.n_layers):
            for weight in WEIGHTS:
                scores = recall_gate(run, known, token, layer, horizon, weight, **params)
                named = named_by_score(scores, run.top_k)
                hits[weight] += len(set(named) & set(token["experts"][layer]))
    default = 1.0 if horizon == 1 else 2.0
    return min(WEIGHTS, key=lambda w: (-hits[w], abs(w - default)))


def moments(run):
    """Yield each decoded token with the list of the tokens that were known when it ran."""
    past, current = [], []
    for i, token in enumerate(run.tokens):
        current.append(token)
        if i + 1 < len(run.tokens) and run.tokens[i + 1]["pass"] == token["pass"]:
            continue
        for one in current:
            if one["decoded"]:
                yield past, one
        past = past + [one for one in current if one["stayed"]]
        current = []


def asked(run, guess, before=()):
    """Ask about each decoded token at each layer; `before` are tokens of a trace that ran earlier.

    Returns
    -------
    list of list
        For each decoded token and layer, the scores or None.
    """
    return [
        [guess(run, [*before, *past], token, layer) for layer in range(run.n_layers)]
        for past, token in moments(run)
    ]
