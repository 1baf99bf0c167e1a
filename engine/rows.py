"""What a session saw, in the columns of a trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.session import Pass, Session


@dataclass(frozen=True)
class Place:
    """Where a pass stands in a trace."""

    turn: int
    number: int
    phase: int


def routing_rows(done: Pass, place: Place) -> dict[str, np.ndarray | None]:
    """Return the rows of ``routing.parquet`` of one pass, in (layer, step) order.

    A layer that ran fewer tokens than the pass has ran its last ones: before the last layer
    llama.cpp keeps only the tokens of which an output is wanted.
    """
    layers = sorted(done.seen.layers, key=lambda seen: seen.layer.layer)
    counts = [len(seen.experts) for seen in layers]
    n_rows, stop = sum(counts), done.first_step + len(done.tokens)
    steps = [np.arange(stop - count, stop, dtype=np.int32) for count in counts]

    def joined(name: str) -> np.ndarray | None:
        parts = [getattr(seen, name) for seen in layers]
        return None if any(part is None for part in parts) else np.concatenate(parts)

    return {
        "turn": np.full(n_rows, place.turn, np.int32),
        "pass": np.full(n_rows, place.number, np.int32),
        "phase": np.full(n_rows, place.phase, np.uint8),
        "step": np.concatenate(steps),
        "layer": np.repeat(np.array([seen.layer.layer for seen in layers], np.int16), counts),
        "experts": joined("experts"),
        "weights": joined("weights"),
        "residency": joined("residency"),
        "dropped": None,
        "logits": joined("logits"),
        "gate_input": joined("gate_input"),
    }


def step_rows(done: Pass, place: Place, pieces: Sequence[bytes]) -> dict[str, Any]:
    """Return the rows of ``steps.parquet`` of one pass; its totals stand on the last."""
    count = len(done.tokens)
    store = done.store

    def on_last(value: float | None) -> list[float | None]:
        return [None] * (count - 1) + [value]

    return {
        "turn": np.full(count, place.turn, np.int32),
        "pass": np.full(count, place.number, np.int32),
        "step": np.arange(done.first_step, done.first_step + count, dtype=np.int32),
        "phase": np.full(count, place.phase, np.uint8),
        "token": np.array(done.tokens, np.int32),
        "piece": list(pieces),
        "wall_ms": on_last(done.wall_ms),
        "io_ms": on_last(store.io_ms if store else None),
        "stall_ms": on_last(store.stall_ms if store else None),
        "read_bytes": on_last(store.read_bytes if store else None),
        "lookups": on_last(store.lookups if store else None),
        "hits": on_last(store.hits if store else None),
        "embedding": done.seen.embedding,
    }


def layer_rows(session: Session) -> list[dict[str, Any]]:
    """Return the rows of ``layers.parquet``: one per layer of the model, dense ones too."""
    file, routed = session.file, {layer.layer: layer for layer in session.plan.layers}
    rows = []
    for number in range(session.model.n_layer):
        row: dict[str, Any] = {"layer": number, "dense_bytes": file.dense_bytes.get(number, 0)}
        if number in routed:
            layer = routed[number]
            row |= {
                "expert_bytes": session.expert_bytes[number],
                "router_matrix": layer.router_matrix.reshape(-1),
                "router_bias": layer.router_bias,
                "selection_bias": layer.selection_bias,
                "norm_weight": layer.norm_weight,
            }
        rows.append(row)
    return rows
