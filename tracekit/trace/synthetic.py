"""Synthetic traces with the structure of real routing, for tests, benchmarks and examples.

In: sizes and a seed. Out: a `Trace` in memory. No model is run.

A token's hidden vector mixes a slowly drifting topic, the embedding of its token (frequent tokens
recur) and the context of its neighbours; each layer changes it a little. All tokens share a constant
part, which the routers read; it makes some experts popular (Zipf). So experts recur from token to
token, differ in popularity and change with the topic, and a layer's routing can be guessed from the
gate input of the layer before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.trace.columns import Values, to_table
from tracekit.trace.facts import ModelFacts, TraceFacts
from tracekit.trace.layers import layers_table
from tracekit.trace.reader import Trace
from tracekit.trace.schema import DECODE, PREFILL, routing_schema, steps_schema

VOCABULARY = 1024
NORM_EPS = 1e-6
# Tokens generated at a time: so few that a matrix product stays on one thread, where it is as fast
# and always sums in the same order.
CHUNK = 32

# Shares of the variance of a hidden vector, and correlations, chosen so that routings repeat about
# as much as phones recorded of a large model (top-6 of 128: 38 % of the previous token's experts,
# 24 % of those 32 tokens before) and that a stale gate names about three of four experts.
TOPIC_SHARE = 0.35  # of every layer
TOKEN_SHARE = 0.5  # of the rest of layer 0
TOPIC_DRIFT = 0.995  # correlation from one token to the next
CONTEXT_DRIFT = 0.4
LAYER_DRIFT = 0.93  # correlation from one layer to the next
POPULARITY = 0.45  # exponent of the Zipf law of experts


def synthesize(
    n_layer: int = 4,
    n_expert: int = 16,
    top_k: int = 2,
    n_tokens: int = 64,
    n_turns: int = 1,
    prefill: int = 0,
    seed: int = 0,
    *,
    expert_bytes: int | Sequence[int] = 3 << 20,
    dense_layers: int = 0,
    logits: bool = False,
    gate_inputs: bool = False,
    n_embd: int = 64,
) -> Trace:
    """Return a synthetic trace; the same arguments give the same trace.

    Parameters
    ----------
    n_layer, n_expert, top_k : int
    n_tokens : int
        Decoded tokens in all, shared evenly among the turns.
    n_turns : int
    prefill : int
        Prompt tokens of each turn, evaluated in one pass. As llama.cpp does it, the last layer
        routes only the last of them.
    seed : int
    expert_bytes : int or sequence of int
        Bytes of an expert: of all layers, or of each MoE layer.
    dense_layers : int
        How many leading layers have no experts.
    logits, gate_inputs : bool
        Carry the router logits; carry the gate inputs, token embeddings and router matrices.
    n_embd : int
        Width of a gate input.

    Raises
    ------
    ValueError
        The sizes contradict each other.
    """
    n_moe = n_layer - dense_layers
    if min(n_moe, n_tokens, n_turns, n_embd) < 1 or not 1 <= top_k <= n_expert or prefill < 0:
        raise ValueError("a trace needs a MoE layer, a token, a turn and top_k of n_expert experts")
    sizes = [expert_bytes] * n_moe if isinstance(expert_bytes, int) else list(expert_bytes)
    if len(sizes) != n_moe:
        raise ValueError(f"{len(sizes)} expert sizes given for {n_moe} MoE layers")
    if n_tokens < n_turns:
        raise ValueError(f"{n_tokens} tokens cannot be shared among {n_turns} turns")

    rng = np.random.default_rng(seed)
    model = _Model.draw(rng, n_moe, n_expert, n_embd)
    decoded = [len(part) for part in np.array_split(np.arange(n_tokens), n_turns)]
    lengths = [prefill + n for n in decoded]
    run = _run(rng, model, lengths, top_k, logits, gate_inputs)
    place = _place(lengths, prefill, n_moe)
    facts = TraceFacts(
        model=ModelFacts(
            name="synthetic",
            arch="synthetic",
            n_layer=n_layer,
            n_expert=n_expert,
            top_k=top_k,
            n_embd=n_embd,
            gating="softmax",
            norm_eps=NORM_EPS,
        ),
        source="synthetic",
        complete=True,
        ended="length",
        seed=seed,
    )
    layers: list[dict[str, Any]] = [{"layer": layer} for layer in range(dense_layers)]
    for moe, size in enumerate(sizes):
        layers.append({"layer": dense_layers + moe, "expert_bytes": size})
        if gate_inputs:
            layers[-1] |= {"router_matrix": model.routers[moe], "norm_weight": np.ones(n_embd)}
    routing = _routing_table(run, place, dense_layers)
    steps = _steps_table(run, lengths, prefill, model if gate_inputs else None)
    return Trace.from_tables(
        facts, layers_table(layers), routing, steps, name=f"synthetic trace (seed {seed})"
    )


@dataclass(frozen=True)
class _Model:
    """Routers [L, E, d], embeddings [V, d], the part all tokens share [d], token frequencies [V]."""

    routers: np.ndarray
    embeddings: np.ndarray
    shared: np.ndarray
    frequency: np.ndarray

    @classmethod
    def draw(cls, rng: np.random.Generator, n_moe: int, n_expert: int, n_embd: int) -> "_Model":
        shared = rng.standard_normal(n_embd, dtype=np.float32)
        shared *= np.float32(np.sqrt(n_embd)) / np.linalg.norm(shared)
        routers = rng.standard_normal((n_moe, n_expert, n_embd), dtype=np.float32)
        popularity = -POPULARITY * np.log(np.arange(1, n_expert + 1))
        popularity = np.stack([rng.permutation(popularity) for _ in range(n_moe)])
        # A router turns the shared part into the popularity of its experts, and into nothing else.
        along = popularity.astype(np.float32) / np.float32(np.sqrt(n_embd))
        along -= routers @ shared / np.float32(n_embd)
        routers += along[..., None] * shared
        routers /= np.float32(np.sqrt(n_embd))
        frequency = 1 / np.arange(1, VOCABULARY + 1)
        embeddings = rng.standard_normal((VOCABULARY, n_embd), dtype=np.float32)
        return cls(routers, embeddings, shared, frequency / frequency.sum())


@dataclass(frozen=True)
class _Run:
    """What the model did with T tokens: tokens [T], and for each MoE layer [T, L, ...]."""

    tokens: np.ndarray
    experts: np.ndarray
    weights: np.ndarray
    logits: np.ndarray | None
    gate_input: np.ndarray | None


def _drift(state: np.ndarray, noise: np.ndarray, correlation: float) -> np.ndarray:
    """Turn `noise` [n, ...] in place into a series that drifts on from `state`; return its end."""
    noise *= np.float32(np.sqrt(1 - correlation**2))
    for at in range(len(noise)):
        noise[at] += np.float32(correlation) * state
        state = noise[at]
    return state.copy()


def _run(
    rng: np.random.Generator,
    model: _Model,
    lengths: Sequence[int],
    top_k: int,
    logits: bool,
    gate_inputs: bool,
) -> _Run:
    n_moe, n_expert, n_embd = model.routers.shape
    total = sum(lengths)
    tokens = rng.choice(VOCABULARY, size=total, p=model.frequency)
    experts = np.empty((total, n_moe, top_k), np.uint16)
    weights = np.empty((total, n_moe, top_k), np.float32)
    all_logits = np.empty((total, n_moe, n_expert), np.float32) if logits else None
    all_inputs = np.empty((total, n_moe, n_embd), np.float32) if gate_inputs else None
    matrices = np.ascontiguousarray(model.routers.transpose(0, 2, 1))
    starts = np.cumsum([0, *lengths])
    for turn, length in enumerate(lengths):
        topic = rng.standard_normal((n_embd,), dtype=np.float32)
        context = rng.standard_normal((n_moe, n_embd), dtype=np.float32)
        for first in range(0, length, CHUNK):
            n = min(CHUNK, length - first)
            here = slice(starts[turn] + first, starts[turn] + first + n)
            topics = rng.standard_normal((n, n_embd), dtype=np.float32)
            topic = _drift(topic, topics, TOPIC_DRIFT)
            hidden = rng.standard_normal((n, n_moe, n_embd), dtype=np.float32)
            context = _drift(context, hidden, CONTEXT_DRIFT)
            # Layer 0 sees the token and its context, each next layer a changed copy; all layers
            # see the topic.
            hidden[:, 0] *= np.float32(np.sqrt(1 - TOKEN_SHARE))
            hidden[:, 0] += np.float32(np.sqrt(TOKEN_SHARE)) * model.embeddings[tokens[here]]
            layers = np.ascontiguousarray(hidden.transpose(1, 0, 2))
            for layer in range(1, n_moe):
                layers[layer] *= np.float32(np.sqrt(1 - LAYER_DRIFT**2))
                layers[layer] += np.float32(LAYER_DRIFT) * layers[layer - 1]
            layers *= np.float32(np.sqrt(1 - TOPIC_SHARE))
            layers += np.float32(np.sqrt(TOPIC_SHARE)) * topics
            inputs = _norm(layers + model.shared)
            scores = inputs @ matrices
            chosen, picked = _largest(scores, top_k)
            mass = np.exp(picked - picked[..., :1])
            experts[here] = chosen.transpose(1, 0, 2)
            weights[here] = (mass / mass.sum(axis=-1, keepdims=True)).transpose(1, 0, 2)
            if all_logits is not None:
                all_logits[here] = scores.transpose(1, 0, 2)
            if all_inputs is not None:
                all_inputs[here] = inputs.transpose(1, 0, 2)
    return _Run(tokens, experts, weights, all_logits, all_inputs)


def _norm(vectors: np.ndarray) -> np.ndarray:
    """Divide each vector by its root mean square, as a layer does before its router."""
    square = np.einsum("...d,...d->...", vectors, vectors) / vectors.shape[-1]
    normed: np.ndarray = vectors / np.sqrt(square + np.float32(NORM_EPS))[..., None]
    return normed


def _largest(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids and the scores of the k largest of the last axis, largest first."""
    n = scores.shape[-1]
    ids = np.argpartition(scores, n - k, axis=-1)[..., n - k :]
    values = np.take_along_axis(scores, ids, axis=-1)
    order = np.argsort(-values, axis=-1)
    return np.take_along_axis(ids, order, axis=-1), np.take_along_axis(values, order, axis=-1)


def _place(lengths: Sequence[int], prefill: int, n_moe: int) -> dict[str, np.ndarray]:
    """Return where each routing belongs, in (pass, layer, step) order.

    `token` counts over the whole trace and `moe` from the first MoE layer: they are the indices of
    the routing in a `_Run`.
    """
    columns: dict[str, list[np.ndarray]] = {
        name: [] for name in ("token", "moe", "turn", "pass", "phase", "step")
    }
    first_token = first_pass = 0
    for turn, length in enumerate(lengths):
        layer, step = (grid.ravel() for grid in np.indices((n_moe, prefill)))
        routed = (layer < n_moe - 1) | (step == prefill - 1)
        layer, step = layer[routed], step[routed]
        decoded = np.arange(prefill, length)
        moe = np.concatenate((layer, np.tile(np.arange(n_moe), len(decoded))))
        all_steps = np.concatenate((step, np.repeat(decoded, n_moe)))
        columns["moe"].append(moe)
        columns["step"].append(all_steps)
        columns["token"].append(first_token + all_steps)
        columns["turn"].append(np.full(len(moe), turn))
        columns["phase"].append(np.where(all_steps < prefill, PREFILL, DECODE))
        columns["pass"].append(first_pass + np.maximum(all_steps - max(prefill - 1, 0), 0))
        first_token += length
        first_pass += length - max(prefill - 1, 0)
    return {name: np.concatenate(parts) for name, parts in columns.items()}


def _routing_table(run: _Run, place: dict[str, np.ndarray], dense_layers: int) -> pa.Table:
    _, n_moe, top_k = run.experts.shape
    row = place["token"] * n_moe + place["moe"]
    in_order = len(row) == len(run.tokens) * n_moe and bool((np.diff(row) == 1).all())
    columns: dict[str, Values] = {n: place[n] for n in ("turn", "pass", "phase", "step")}
    columns["layer"] = place["moe"] + dense_layers
    schema = routing_schema(
        top_k,
        None if run.logits is None else run.logits.shape[2],
        None if run.gate_input is None else run.gate_input.shape[2],
    )
    for name in ("experts", "weights", "logits", "gate_input"):
        values = getattr(run, name)
        if values is not None:
            flat = values.reshape(-1, values.shape[2])
            columns[name] = flat if in_order else flat[row]
    return to_table(columns, schema, len(row))


def _steps_table(run: _Run, lengths: Sequence[int], prefill: int, model: _Model | None) -> pa.Table:
    step = np.concatenate([np.arange(length) for length in lengths])
    phase = np.where(step < prefill, PREFILL, DECODE)
    begins = (phase == DECODE) | (step == 0)
    columns: dict[str, Values] = {
        "turn": np.repeat(np.arange(len(lengths)), lengths),
        "pass": np.cumsum(begins) - 1,
        "step": step,
        "phase": phase,
        "token": run.tokens,
    }
    if model is not None:
        columns["embedding"] = model.embeddings[run.tokens]
    schema = steps_schema(None if model is None else model.embeddings.shape[1])
    return to_table(columns, schema, len(step))
