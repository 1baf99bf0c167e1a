"""Recordings of known content, in a test's own process or in one that prints what it has flushed.

Run as ``python trace_recorder.py PATH N_TOKENS FLUSH_MS [--force]``; it prints ``flushed N`` once N tokens
are on the disk, and ``closed`` after a clean end.
"""

import sys
from pathlib import Path

import numpy as np

from tracekit.trace import ModelFacts, Trace, TraceFacts, TraceWriter

N_LAYER, N_EXPERT, TOP_K, N_EMBD, PROMPT = 3, 8, 2, 16, 5

FACTS = TraceFacts(
    model=ModelFacts("tiny", "test", N_LAYER, N_EXPERT, TOP_K, n_embd=N_EMBD), source="recorded"
)


def a_pass(number: int) -> tuple[dict, dict]:
    """Return pass `number`, the prompt or one decoded token; the number determines its content."""
    phase = int(number > 0)
    steps = np.arange(PROMPT) if number == 0 else np.array([PROMPT + number - 1])
    layer, step = (grid.ravel() for grid in np.meshgrid(np.arange(N_LAYER), steps, indexing="ij"))
    first = (number + layer) % N_EXPERT
    experts = np.stack((first, (first + 1) % N_EXPERT), axis=1)
    place = {"turn": 0, "pass": number, "phase": phase}
    routing = place | {
        "step": step,
        "layer": layer,
        "experts": experts,
        "weights": np.full((len(step), TOP_K), 0.5),
        "gate_input": np.full((len(step), N_EMBD), number, np.float32),
    }
    piece = [b"%d" % s for s in steps]
    return routing, place | {"step": steps, "token": steps, "piece": piece}


def writer_for(path, **options) -> TraceWriter:
    return TraceWriter(path, FACTS, top_k=TOP_K, n_embd=N_EMBD, **options)


def record(writer: TraceWriter, first: int, last: int) -> None:
    for number in range(first, last):
        writer.write_pass(*a_pass(number))


def is_recording(trace: Trace, n_passes: int) -> bool:
    """Say whether `trace` is exactly the first passes of the recorder."""
    rows = trace.routing(["pass", "step", "layer", "experts", "gate_input"])
    expected = [a_pass(number)[0] for number in range(n_passes)]
    return all(
        np.array_equal(rows[name], np.concatenate([p[name] for p in expected]))
        for name in ("step", "layer", "experts", "gate_input")
    )


def raising(error):
    """Return a function that raises `error`, whatever it is called with."""

    def raise_it(*_, **__):
        raise error

    return raise_it


def main(path: str, n_tokens: str, flush_ms: str, *options: str) -> None:
    """Record."""
    with TraceWriter(
        Path(path),
        FACTS,
        top_k=TOP_K,
        n_embd=N_EMBD,
        flush_ms=float(flush_ms),
        force="--force" in options,
    ) as writer:
        writer.write_layers([{"layer": n, "expert_bytes": 1000} for n in range(N_LAYER)])
        for number in range(int(n_tokens) + 1):
            writer.write_pass(*a_pass(number))
            if number % 7 == 0:
                writer.flush()
                print("flushed", number, flush=True)
    print("closed", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
