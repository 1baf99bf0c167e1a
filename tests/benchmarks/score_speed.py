"""How fast predictors are scored, against numpy's matrix product alone.

    python tests/benchmarks/score_speed.py              # from arrays in memory
    python tests/benchmarks/score_speed.py --parquet    # and end to end from a trace on disk

10,000 tokens of 48 layers, 128 experts and 2,048 values a gate input are scored by stale-gate. Both
sides multiply the same arrays in the same run, in alternation. The products alone are timed in a
plain loop and in a loop on the scorer's own threads, and the faster of the two counts. The figure of
interest is the ratio, which should be at least 60 %. OPENBLAS_NUM_THREADS=1 is how the command line
runs it.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from peak_memory import own_peak_bytes

from tracekit.predictors.stale_gate import StaleGate
from tracekit.routing.blocks import Block
from tracekit.routing.selection import SelectionRule
from tracekit.scoring import predict
from tracekit.scoring.run import score_parts
from tracekit.scoring.tally import Tally
from tracekit.stats.units import Units

LAYERS, EXPERTS, TOP_K, WIDTH, BLOCK = 48, 128, 8, 2048, 500


class RouterArrays:
    """What `Routers` gives, from an array instead of a trace."""

    n_layers, n_expert, top_k, rule = LAYERS, EXPERTS, TOP_K, SelectionRule("softmax")
    layer_ids = np.arange(LAYERS)

    def __init__(self, matrices):
        self.matrices = matrices

    def knows(self, layer, name):
        return name in ("router_matrix", "gate_input")

    def logits(self, layer, gate_input):
        return gate_input @ self.matrices[layer].T

    def selection_scores(self, layer, logits):
        return self.rule.scores(logits)


def made(tokens, seed=0):
    """Gate inputs that drift from layer to layer, router matrices, and what they select."""
    rng = np.random.default_rng(seed)
    matrices = rng.standard_normal((LAYERS, EXPERTS, WIDTH), dtype=np.float32) / 45
    gate_input = np.empty((tokens, LAYERS, WIDTH), np.float32)
    experts = np.empty((tokens, LAYERS, TOP_K), np.uint16)
    for start in range(0, tokens, BLOCK):
        part = slice(start, min(start + BLOCK, tokens))
        n = part.stop - part.start
        x = rng.standard_normal((n, WIDTH), dtype=np.float32)
        for layer in range(LAYERS):
            x = x + 0.4 * rng.standard_normal((n, WIDTH), dtype=np.float32)
            x /= np.sqrt(np.square(x).mean(axis=1, keepdims=True))
            gate_input[part, layer] = x
            logits = x @ matrices[layer].T
            experts[part, layer] = np.argpartition(-logits, TOP_K, axis=1)[:, :TOP_K]
    return matrices, gate_input, experts


def multiply(matrices, gate_input, run):
    """The same products as stale-gate at horizon 1, and nothing else; `run` is a map."""
    for start in range(0, len(gate_input), BLOCK):
        block = gate_input[start : start + BLOCK]
        list(run(lambda layer, b=block: b[:, layer - 1] @ matrices[layer].T, range(1, LAYERS)))


def scored(matrices, gate_input, experts, pool):
    """Score stale-gate at horizon 1."""
    tokens = len(gate_input)
    units = Units.of(np.array([0]), np.array([tokens]))
    predictor = StaleGate(RouterArrays(matrices), 1)
    tally = Tally(LAYERS, TOP_K, (TOP_K,), len(units))
    for start in range(0, tokens, BLOCK):
        stop = min(start + BLOCK, tokens)
        block = Block(
            turn=0,
            start=start,
            start_in_turn=start,
            step=np.arange(start, stop, dtype=np.int32),
            experts=experts[start:stop],
            kept=np.ones(stop - start, bool),
            decode_pass=np.arange(start, stop),
            previous_row=np.arange(stop - start) - 1,
            columns={"gate_input": gate_input[start:stop]},
        )
        score_parts([(predictor, tally, block)], units, pool)
    return tally


def timed(work, *arguments):
    start = time.perf_counter()
    work(*arguments)
    return time.perf_counter() - start


def in_memory(tokens, rounds, jobs):
    matrices, gate_input, experts = made(tokens)
    flops = 2 * tokens * (LAYERS - 1) * EXPERTS * WIDTH
    with ThreadPoolExecutor(jobs) as pool:
        scored(matrices, gate_input[:BLOCK], experts, pool)  # compile
        times = [
            (
                min(timed(multiply, matrices, gate_input, run) for run in (map, pool.map)),
                timed(scored, matrices, gate_input, experts, pool),
            )
            for _ in range(rounds)
        ]
        tally = scored(matrices, gate_input[:BLOCK], experts[:BLOCK], pool)
    alone, whole = (statistics.median(side) for side in zip(*times, strict=True))
    ratio = statistics.median(a / w for a, w in times)
    blas = os.environ.get("OPENBLAS_NUM_THREADS", "all")
    print(
        f"BLAS threads {blas}, jobs {jobs}: products alone {alone:.2f} s "
        f"({flops / alone / 1e9:.0f} GFLOP/s), scored {whole:.2f} s "
        f"({1e9 * whole / tokens / (LAYERS - 1):.0f} ns a routing); ratio {100 * ratio:.0f} % "
        f"(slot accuracy {100 * tally.hits.sum() / tally.routings.sum() / TOP_K:.1f} %)"
    )


def from_parquet(tokens, jobs):
    """End to end, and the most memory it took, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.trace"
        write(path, tokens)
        size = sum(file.stat().st_size for file in path.iterdir())
        here = [sys.executable, __file__, "--score", str(path), "--jobs", str(jobs)]
        print(f"trace of {tokens} tokens: {size / 2**30:.2f} GiB on disk")
        subprocess.run(here, check=True)


def write(path, tokens):
    """Write a trace of `tokens` decoded tokens, block by block."""
    from tracekit.trace import ModelFacts, TraceFacts, TraceWriter

    matrices, _, _ = made(1)
    facts = TraceFacts(
        ModelFacts("made", "made", LAYERS, EXPERTS, TOP_K, n_embd=WIDTH, gating="softmax"),
        source="synthetic",
    )
    with TraceWriter(path, facts, top_k=TOP_K, n_embd=WIDTH) as writer:
        writer.write_layers(
            [
                {"layer": layer, "expert_bytes": 1000, "router_matrix": matrices[layer].ravel()}
                for layer in range(LAYERS)
            ]
        )
        for start in range(0, tokens, BLOCK):
            _, gate_input, experts = made(min(BLOCK, tokens - start), seed=start)
            for t in range(len(experts)):
                step = start + t
                writer.write_pass(
                    {
                        "turn": np.zeros(LAYERS, np.int32),
                        "pass": np.full(LAYERS, step, np.int32),
                        "phase": np.ones(LAYERS, np.uint8),
                        "step": np.full(LAYERS, step, np.int32),
                        "layer": np.arange(LAYERS, dtype=np.int16),
                        "experts": experts[t],
                        "weights": np.full((LAYERS, TOP_K), 1 / TOP_K, np.float32),
                        "gate_input": gate_input[t],
                    },
                    {"turn": [0], "pass": [step], "step": [step], "phase": [1]},
                )
        writer.close()


def score_trace(path, jobs):
    from tracekit.trace import Trace

    trace = Trace.open(path)
    start = time.perf_counter()
    result = predict(trace, ["stale-gate"], per_layer=False, jobs=jobs)
    seconds = time.perf_counter() - start
    peak = own_peak_bytes() / 2**30
    routings = result.rows[0].routings
    print(
        f"from Parquet: {seconds:.2f} s, {1e9 * seconds / routings:.0f} ns a routing; "
        f"peak memory of the process {peak:.2f} GiB"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--score", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.score:
        score_trace(arguments.score, arguments.jobs)
        return
    in_memory(arguments.tokens, arguments.rounds, arguments.jobs)
    if arguments.parquet:
        from_parquet(arguments.tokens, arguments.jobs)


if __name__ == "__main__":
    main()
