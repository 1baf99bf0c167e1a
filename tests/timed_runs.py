"""Runs whose tokens take a known time: a trace, and what plain Python says an LRU cache reads of it."""

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

import tracekit
from tracekit.figures import MIB
from tracekit.formats.metrics import with_metrics
from tracekit.trace import Trace
from tracekit.trace.schema import ROUTING_FILE, STEPS_FILE

TOKENS, LAYERS, EXPERTS, TOP_K = 200, 6, 16, 2
EXPERT_MIB = 2
A_MS, B_MS = 40.0, 1.5
HEADER = "step,steps,wall_ms,io_ms,compute_ms,read_bytes,stall_ms"


def routed(tokens: int = TOKENS, seed: int = 1, experts: int = EXPERTS) -> Trace:
    """Return a trace whose tokens mostly select what the token before selected."""
    rng = np.random.default_rng(seed)
    chosen = np.empty((tokens, LAYERS, TOP_K), np.int64)
    for layer in range(LAYERS):
        now = rng.choice(experts, TOP_K, replace=False)
        for token in range(tokens):
            if rng.random() < 0.1 + 0.8 * (token // 10 % 2):
                now = rng.choice(experts, TOP_K, replace=False)
            chosen[token, layer] = now
    weights = np.tile([0.7, 0.3], (tokens, LAYERS, 1))
    trace = tracekit.from_arrays(chosen, weights=weights, expert_mib=EXPERT_MIB, n_expert=experts)
    trace.name = "run"
    return trace


def lru_bytes(trace: Trace, cache_mib: float) -> np.ndarray:
    """Return the bytes that each token reads with a global LRU cache, int64 [tokens]."""
    chosen = trace.routing(["experts"])["experts"].reshape(-1, LAYERS, TOP_K)
    held: OrderedDict[tuple[int, int], None] = OrderedDict()
    read = np.zeros(len(chosen), np.int64)
    for token, of_layers in enumerate(chosen.tolist()):
        for layer, experts in enumerate(of_layers):
            for expert in experts:
                if held.pop((layer, expert), 0) is not None:
                    read[token] += EXPERT_MIB * MIB
                held[layer, expert] = None
            while len(held) * EXPERT_MIB > max(cache_mib, TOP_K * EXPERT_MIB):
                held.popitem(last=False)
    return read


def wall(read_bytes: np.ndarray, seed: int = 2) -> np.ndarray:
    """Return times of tokens that read so much: A + B · MiB, and noise with some slow ones."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, 1, len(read_bytes)) + 30 * (rng.random(len(read_bytes)) < 0.02)
    return np.asarray(A_MS + B_MS * read_bytes / MIB + noise)


def metrics(
    path: Path, wall_ms: Sequence[float] | np.ndarray, read_bytes: np.ndarray, stalls: bool = True
) -> Path:
    """Write a ``.metrics`` file."""
    lines = [HEADER]
    for n, (ms, read) in enumerate(zip(wall_ms, read_bytes, strict=True), 1):
        wait = read / MIB
        lines.append(f"{n},{len(wall_ms)},{ms:.3f},{wait:.3f},10,{read},{wait * stalls:.3f}")
    path.write_text("\n".join([*lines, "# summary tokens", ""]))
    return path


def with_layer_times(trace: Trace, seed: int = 3) -> Trace:
    """Return the trace with times of its layers, of which some are not known."""
    rng = np.random.default_rng(seed)
    table = trace.table(ROUTING_FILE)
    for name, most in (("wait_ms", 4.0), ("compute_ms", 2.0)):
        ms = most * rng.random(len(table)) * (1 + table["layer"].to_numpy())
        ms[rng.random(len(table)) < 0.2] = np.nan
        table = table.append_column(name, pa.array(ms, pa.float32(), from_pandas=True))
    return Trace.from_tables(
        trace.facts, trace.layers, table, trace.table(STEPS_FILE), name=trace.name
    )


def timed(folder: Path, cache_mib: float = 96, seed: int = 2, **of_trace: int) -> Trace:
    """Return a trace with the times of its tokens, at a cache of that size."""
    trace = routed(**of_trace)
    read = lru_bytes(trace, cache_mib)
    found = with_metrics(trace, metrics(folder / f"{seed}.metrics", wall(read, seed), read))
    found.facts = found.facts.with_budget(round(cache_mib * MIB))
    return found
