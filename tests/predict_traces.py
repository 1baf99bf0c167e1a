"""Small traces with gate inputs, made from arrays, for the tests of predictors."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.trace import ModelFacts, Trace, TraceFacts
from tracekit.trace.columns import from_numpy
from tracekit.trace.schema import layers_schema, routing_schema, steps_schema


@dataclass
class Toy:
    """A model whose residual stream drifts from layer to layer, run on random tokens.

    Everything a trace holds, as arrays over decoded tokens [T, L, …].
    """

    facts: ModelFacts
    turn: np.ndarray
    step: np.ndarray
    token: np.ndarray
    embedding: np.ndarray
    gate_input: np.ndarray
    logits: np.ndarray
    experts: np.ndarray
    weights: np.ndarray
    matrix: np.ndarray
    norm_weight: np.ndarray
    selection_bias: np.ndarray | None


def select(logits, bias, facts):
    """Select experts one routing at a time, in plain Python: ids of the k best, best first."""
    k = facts.top_k

    def gate(row):
        if facts.gating == "softmax":
            e = [np.exp(float(x)) for x in row]
            return [x / sum(e) for x in e]
        if facts.gating == "sigmoid":
            return [1 / (1 + np.exp(-float(x))) for x in row]
        if facts.gating == "sqrt-softplus":
            return [np.sqrt(np.log1p(np.exp(float(x)))) for x in row]
        return [float(x) for x in row]

    chosen = []
    for row in logits:
        scores = gate(row)
        if bias is not None:
            scores = [s + float(b) for s, b in zip(scores, bias, strict=True)]
        if facts.n_group > 1:
            size = len(scores) // facts.n_group
            worth = [
                sum(sorted(scores[g * size : (g + 1) * size])[-2:]) for g in range(facts.n_group)
            ]
            used = sorted(range(facts.n_group), key=lambda g: (-worth[g], g))[: facts.n_group_used]
            scores = [s if i // size in used else -np.inf for i, s in enumerate(scores)]
        chosen.append(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k])
    return np.array(chosen, np.uint16)


def toy(
    turns=(30, 20, 25),
    n_layers=4,
    n_expert=16,
    top_k=4,
    n_embd=24,
    vocabulary=12,
    drift=0.5,
    gating="softmax",
    biased=False,
    n_group=1,
    n_group_used=1,
    seed=0,
) -> Toy:
    """Make a toy run; each of `turns` decodes so many tokens."""
    rng = np.random.default_rng(seed)
    n = sum(turns)
    facts = ModelFacts(
        name="toy",
        arch="toy",
        n_layer=n_layers,
        n_expert=n_expert,
        top_k=top_k,
        n_embd=n_embd,
        gating=gating,
        n_group=n_group,
        n_group_used=n_group_used,
        norm_eps=1e-6,
    )
    table = rng.standard_normal((vocabulary, n_embd)).astype(np.float32)
    token = rng.integers(0, vocabulary, n).astype(np.int32)
    residual = table[token].astype(np.float64)
    matrix = rng.standard_normal((n_layers, n_expert, n_embd)).astype(np.float32) / 4
    norm = rng.uniform(0.5, 1.5, (n_layers, n_embd)).astype(np.float32)
    bias = rng.uniform(-0.4, 0.4, (n_layers, n_expert)).astype(np.float32) if biased else None
    step_of = [5 + np.arange(t) for t in turns]
    gate_input = np.empty((n, n_layers, n_embd), np.float32)
    for layer in range(n_layers):
        residual = residual + drift * rng.standard_normal(residual.shape)
        scaled = residual / np.sqrt((residual**2).mean(axis=1, keepdims=True) + 1e-6)
        gate_input[:, layer] = scaled * norm[layer]
    logits = np.einsum("tld,led->tle", gate_input, matrix).astype(np.float32)
    experts = np.stack(
        [
            select(logits[:, layer], None if bias is None else bias[layer], facts)
            for layer in range(n_layers)
        ],
        axis=1,
    )
    chosen = np.exp(np.take_along_axis(logits, experts.astype(int), axis=2))
    weights = (chosen / chosen.sum(axis=2, keepdims=True)).astype(np.float32)
    return Toy(
        facts,
        np.repeat(np.arange(len(turns)), turns).astype(np.int32),
        np.concatenate(step_of).astype(np.int32),
        token,
        table[token],
        gate_input,
        logits,
        experts,
        weights,
        matrix,
        norm,
        bias,
    )


@dataclass
class Tables:
    """What a trace is made of."""

    facts: TraceFacts
    layers: pa.Table
    routing: pa.Table
    steps: pa.Table

    def trace(self) -> Trace:
        """Make the trace."""
        return Trace.from_tables(
            self.facts, self.layers, self.routing, self.steps, name="toy.trace"
        )


def trace_of(run: Toy, drop=(), prefill=1, **facts) -> Trace:
    """Make a trace of a toy run; see `tables_of`."""
    return tables_of(run, drop, prefill, **facts).trace()


def tables_of(run: Toy, drop=(), prefill=1, **facts) -> Tables:
    """Make the tables of a toy run; `drop` names columns to leave out.

    Each turn starts with a prefill of `prefill` tokens, which select experts 0 … k − 1.
    """
    model = run.facts
    n_layers, k = run.experts.shape[1:]
    columns = {name: [] for name in ("turn", "pass", "phase", "step", "layer")}
    lists = {name: [] for name in ("experts", "weights", "logits", "gate_input")}
    steps = {name: [] for name in ("turn", "pass", "step", "phase", "token", "embedding")}
    n_pass = 0
    layers = np.arange(n_layers)

    def add(turn, phase, step, experts, weights, logits, gate_input):
        rows = len(experts)
        for name, value in (("turn", turn), ("pass", n_pass), ("phase", phase)):
            columns[name].append(np.full(rows, value))
        columns["step"].append(step)
        columns["layer"].append(np.repeat(layers, rows // n_layers))
        for name, value in zip(lists, (experts, weights, logits, gate_input), strict=True):
            lists[name].append(value)

    for turn in np.unique(run.turn):
        inside = np.flatnonzero(run.turn == turn)
        first = int(run.step[inside[0]])
        if prefill:
            n = prefill * n_layers
            add(
                turn,
                0,
                np.tile(np.arange(first - prefill, first), n_layers),
                np.tile(np.arange(k), (n, 1)),
                np.full((n, k), 1 / k),
                np.zeros((n, model.n_expert)),
                np.zeros((n, model.n_embd)),
            )
            for p in range(prefill):
                _add_step(steps, turn, n_pass, first - prefill + p, 0, 0, run.embedding[0])
            n_pass += 1
        for i in inside:
            step = int(run.step[i])
            add(
                turn,
                1,
                np.full(n_layers, step),
                run.experts[i],
                run.weights[i],
                run.logits[i],
                run.gate_input[i],
            )
            _add_step(steps, turn, n_pass, step, 1, run.token[i], run.embedding[i])
            n_pass += 1
    routing = {n: np.concatenate(v) for n, v in {**columns, **lists}.items()}
    schema = routing_schema(k, model.n_expert, model.n_embd)
    table = _table({n: routing.get(n) for n in schema.names}, schema, len(routing["turn"]), drop)
    step_schema = steps_schema(model.n_embd)
    step_columns = {n: np.array(v) for n, v in steps.items()}
    step_table = _table(
        {n: step_columns.get(n) for n in step_schema.names},
        step_schema,
        len(step_columns["turn"]),
        drop,
    )
    layer_rows = [
        {
            "layer": layer,
            "expert_bytes": 1000 + 8 * layer,
            "router_matrix": None
            if "router_matrix" in drop
            else run.matrix[layer].ravel().tolist(),
            "norm_weight": None if "norm_weight" in drop else run.norm_weight[layer].tolist(),
            "selection_bias": (
                None if run.selection_bias is None else run.selection_bias[layer].tolist()
            ),
        }
        for layer in range(n_layers)
    ]
    return Tables(
        TraceFacts(model, source="recorded", **{"complete": True, **facts}),
        pa.Table.from_pylist(layer_rows, layers_schema()),
        table,
        step_table,
    )


def _add_step(steps, turn, n_pass, step, phase, token, embedding):
    values = (turn, n_pass, step, phase, token, embedding)
    for name, value in zip(steps, values, strict=True):
        steps[name].append(value)


def _table(columns, schema, n, drop):
    kept = [f for f in schema if f.name not in drop]
    arrays = [from_numpy(columns[f.name], f.type, n) for f in kept]
    return pa.Table.from_arrays(arrays, schema=pa.schema(kept))
