"""Small random traces for tests, and their routings as plain Python values."""

from dataclasses import dataclass

import numpy as np

from tracekit.trace import ModelFacts, Trace, TraceFacts
from tracekit.trace.columns import to_table
from tracekit.trace.layers import layers_table
from tracekit.trace.schema import routing_schema


@dataclass(frozen=True)
class Routing:
    turn: int
    pass_id: int
    phase: str
    step: int
    layer: int
    experts: list[int]
    weights: list[float]


def make_trace(
    n_layer=3,
    n_expert=8,
    top_k=2,
    n_turns=2,
    prefill=3,
    decode=6,
    layers=None,
    weights=None,
    residency=None,
    dropped=None,
    seed=0,
) -> Trace:
    """Make a trace whose expert sizes differ by layer; `decode` tokens a turn."""
    rng = np.random.default_rng(seed)
    layers = tuple(range(n_layer)) if layers is None else layers
    rows = []
    pass_id = 0
    for turn in range(n_turns):
        passes = [(0, list(range(prefill)))] if prefill else []
        passes += [(1, [prefill + token]) for token in range(decode)]
        for phase, steps in passes:
            rows += [(turn, pass_id, phase, step, layer) for layer in layers for step in steps]
            pass_id += 1
    popular = rng.random((len(layers), n_expert)) ** 3 + 0.05
    popular /= popular.sum(axis=1, keepdims=True)
    place = {layer: i for i, layer in enumerate(layers)}
    experts = np.array(
        [rng.choice(n_expert, top_k, replace=False, p=popular[place[row[4]]]) for row in rows],
        np.uint16,
    )
    drawn = -np.sort(-rng.random((len(rows), top_k)), axis=1).astype(np.float32)
    places = np.array(rows).reshape(len(rows), 5).T
    weights = drawn if weights is None else weights
    columns = {
        **dict(zip(("turn", "pass", "phase", "step", "layer"), places, strict=True)),
        "experts": experts,
        "weights": weights,
        "residency": residency,
        "dropped": dropped,
    }
    table = to_table(columns, routing_schema(top_k), len(rows), {"weights": ~np.isnan(weights)})
    sizes = [{"layer": layer, "expert_bytes": 1000 + 500 * (layer % 2)} for layer in layers]
    facts = TraceFacts(
        model=ModelFacts("test", "test", max(layers) + 1, n_expert, top_k),
        source="synthetic",
        complete=True,
    )
    return Trace.from_tables(facts, layers_table(sizes), table)


def routings(trace: Trace) -> list[Routing]:
    """Return every routing of `trace`, in its order."""
    columns = trace.routing(["turn", "pass", "phase", "step", "layer", "experts", "weights"])
    return [
        Routing(
            int(columns["turn"][i]),
            int(columns["pass"][i]),
            ("prefill", "decode")[columns["phase"][i]],
            int(columns["step"][i]),
            int(columns["layer"][i]),
            columns["experts"][i].tolist(),
            columns["weights"][i].tolist(),
        )
        for i in range(trace.n_rows)
    ]
