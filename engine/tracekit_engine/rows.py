"""What a session saw, in the columns of a trace."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracekit_engine.session import Pass, Session


@dataclass(frozen=True)
class Place:
    """Where a pass stands in a trace."""

    turn: int
    number: int
    phase: int


def routing_rows(done: Pass, place: Place) -> dict[str, np.ndarray]:
    """Return the rows of ``routing.parquet`` of one pass, in (layer, step) order.

    What the hook did not copy is left out.

    A layer that ran fewer tokens than the pass has ran its last ones: before the last layer
    llama.cpp keeps only the tokens of which an output is wanted.
    """
    seen, stop = done.seen, done.first_step + len(done.tokens)
    numbers, counts = zip(*seen.layers, strict=True)
    rows = {
        "turn": np.full(seen.n_rows, place.turn, np.int32),
        "pass": np.full(seen.n_rows, place.number, np.int32),
        "phase": np.full(seen.n_rows, place.phase, np.uint8),
        "step": np.concatenate([np.arange(stop - n, stop, dtype=np.int32) for n in counts]),
        "layer": np.repeat(np.array(numbers, np.int16), counts),
    }
    for name in ("experts", "weights", "residency", "logits", "gate_input"):
        values = getattr(seen, name)
        if values is not None:
            rows[name] = values
    return rows


def step_rows(done: Pass, place: Place, pieces: Sequence[bytes]) -> dict[str, Any]:
    """Return the rows of ``steps.parquet`` of one pass; its totals stand on the last."""
    count = len(done.tokens)
    rows: dict[str, Any] = {
        "turn": np.full(count, place.turn, np.int32),
        "pass": np.full(count, place.number, np.int32),
        "step": np.arange(done.first_step, done.first_step + count, dtype=np.int32),
        "phase": np.full(count, place.phase, np.uint8),
        "token": np.array(done.tokens, np.int32),
        "piece": list(pieces),
        "wall_ms": _on_last(count, done.wall_ms, np.nan),
    }
    if done.seen.embedding is not None:
        rows["embedding"] = done.seen.embedding
    if done.store is not None:
        for name in ("io_ms", "stall_ms"):
            rows[name] = _on_last(count, getattr(done.store, name), np.nan)
        for name in ("read_bytes", "lookups", "hits"):
            rows[name] = _on_last(count, getattr(done.store, name), -1)
    return rows


def _on_last(count: int, value: float, null: float) -> np.ndarray:
    return np.array([null] * (count - 1) + [value])


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
