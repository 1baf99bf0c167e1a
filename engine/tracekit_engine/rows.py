"""What a session evaluated, in the columns of a trace.

Passes go in; rows come out, as `TraceWriter` takes them. Nothing here writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracekit.trace.schema import DECODE
from tracekit_engine.passes import Pass
from tracekit_engine.session import Session


@dataclass(frozen=True)
class Place:
    """Where a pass belongs in a trace: its turn, its number over the whole trace, its phase."""

    turn: int
    number: int
    phase: int


def routing_rows(evaluated: Pass, place: Place) -> dict[str, np.ndarray]:
    """Return the rows of ``routing.parquet`` of one pass, in (layer, step) order.

    Columns that the hook did not copy are left out. A layer may run fewer tokens than the pass has:
    before the last layer llama.cpp keeps only the tokens whose output is wanted. These are the
    pass's last tokens.

    Raises
    ------
    ValueError
        The pass decodes several tokens, and not all of them ran through the last layer.
    """
    if place.phase == DECODE and any(
        n < len(evaluated.tokens) for _, n in evaluated.captured.layers
    ):
        raise ValueError(
            "a decode pass has every layer of its tokens: evaluate with every_token=True"
        )
    captured, stop = evaluated.captured, evaluated.first_step + len(evaluated.tokens)
    numbers, counts = zip(*captured.layers, strict=True)
    rows: dict[str, np.ndarray] = {
        "turn": np.full(captured.n_rows, place.turn, np.int32),
        "pass": np.full(captured.n_rows, place.number, np.int32),
        "phase": np.full(captured.n_rows, place.phase, np.uint8),
        "step": np.concatenate([np.arange(stop - n, stop, dtype=np.int32) for n in counts]),
        "layer": np.repeat(np.array(numbers, np.int16), counts),
    }
    for name in ("experts", "weights", "residency", "logits", "gate_input"):
        values = getattr(captured, name)
        if values is not None:
            rows[name] = values
    has_run = np.array(counts) > 0
    last = np.cumsum(counts)[has_run] - 1
    waited = None if captured.residency is None else captured.wait_ms
    for name, of_layer in (("wait_ms", waited), ("compute_ms", captured.compute_ms)):
        if of_layer is not None:
            rows[name] = np.full(captured.n_rows, np.nan)
            rows[name][last] = of_layer[has_run]
    return rows


def step_rows(
    evaluated: Pass, place: Place, pieces: Sequence[bytes], began: float
) -> dict[str, Any]:
    """Return the rows of ``steps.parquet`` of one pass; the last row has the pass's totals.

    Parameters
    ----------
    pieces : sequence of bytes
        The text of each token.
    began : float
        When the recording began, by ``time.perf_counter``.
    """
    count = len(evaluated.tokens)
    rows: dict[str, Any] = {
        "turn": np.full(count, place.turn, np.int32),
        "pass": np.full(count, place.number, np.int32),
        "step": np.arange(evaluated.first_step, evaluated.first_step + count, dtype=np.int32),
        "phase": np.full(count, place.phase, np.uint8),
        "token": np.array(evaluated.tokens, np.int32),
        "piece": list(pieces),
        "wall_ms": _on_last(count, evaluated.wall_ms, np.nan),
        "start_s": _on_last(count, evaluated.started - began, np.nan),
        "cpu_ms": _on_last(count, evaluated.usage.cpu_ms, np.nan),
        "major_faults": _on_last(count, evaluated.usage.major_faults, -1),
    }
    if evaluated.available_bytes is not None:
        rows["mem_available_bytes"] = _on_last(count, evaluated.available_bytes, -1)
    if evaluated.captured.embedding is not None:
        rows["embedding"] = evaluated.captured.embedding
    if evaluated.store is not None:
        for name in ("io_ms", "stall_ms", "evict_ms"):
            rows[name] = _on_last(count, getattr(evaluated.store, name), np.nan)
        for name in ("read_bytes", "lookups", "hits"):
            rows[name] = _on_last(count, getattr(evaluated.store, name), -1)
    return rows


def _on_last(count: int, value: float, null: float) -> np.ndarray:
    return np.array([null] * (count - 1) + [value])


def layer_rows(session: Session) -> list[dict[str, Any]]:
    """Return the rows of ``layers.parquet``: one for each layer of the model, dense ones too.

    A layer whose experts the token's id selects has no router matrix: its router does not select.
    """
    file, routed = session.file, {layer.layer: layer for layer in session.plan.layers}
    rows = []
    for number in range(session.model.n_layer):
        row: dict[str, Any] = {"layer": number, "dense_bytes": file.dense_bytes.get(number, 0)}
        if number in routed:
            layer = routed[number]
            matrix = layer.router_matrix
            row |= {
                "expert_bytes": session.expert_bytes[number],
                "router_matrix": None if matrix is None else matrix.reshape(-1),
                "router_bias": layer.router_bias,
                "selection_bias": layer.selection_bias,
                "norm_weight": layer.norm_weight,
            }
        rows.append(row)
    return rows
