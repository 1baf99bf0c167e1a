"""What a prediction by recall costs, beside a lookup of lru.

    python tests/benchmarks/recall_speed.py

Both run on one thread and in turns, on one generated run of 48 layers × 128 experts × top-8, so that a
slow moment of the machine affects both. The history of recall is full, 2,000 tokens, before the clock
starts; then 512 decoded tokens are met in one block and every layer is asked about. Figures are the
medians of the pairs: microseconds a (token, layer), the learning of the block included, and nanoseconds
a lookup.
"""

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np

from tracekit.policies import load_policy
from tracekit.predictors import TOKEN, Horizon, Recall
from tracekit.replaying import build_batches
from tracekit.routing.blocks import Block
from tracekit.routing.passed import in_order, passed_of
from tracekit.routing.routers import Routers
from tracekit.trace import Trace, synthesize

LAYERS, EXPERTS, TOP_K, HISTORY, ASKED = 48, 128, 8, 2000, 512


def blocks(trace: Trace) -> Iterator[Block]:
    """Iterate over the decoded tokens of the run."""
    return (block for block in in_order(trace) if isinstance(block, Block))


def of_recall(trace: Trace, horizon: Horizon) -> float:
    """Return microseconds a (token, layer)."""
    predictor = Recall(Routers(trace), horizon)
    predictor.forget()
    n = 0
    for block in blocks(trace):
        if n >= HISTORY:
            break
        predictor.take_in(passed_of(block))
        n += len(block)
    layers = [layer for layer in range(LAYERS) if predictor.reaches(layer)]
    start = time.perf_counter()
    predictor.meet(block)
    for layer in layers:
        predictor.scores(block, layer)
    return 1e6 * (time.perf_counter() - start) / (len(block) * len(layers))


def of_lru(trace: Trace) -> float:
    """Return nanoseconds a lookup."""
    batches, lru = build_batches(trace), load_policy("lru")
    budget = np.array([trace.bank_bytes // 4])
    start = time.perf_counter()
    lru.simulate(batches, budget)
    return 1e9 * (time.perf_counter() - start) / len(batches.keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    pairs = parser.parse_args().pairs
    trace = synthesize(LAYERS, EXPERTS, TOP_K, HISTORY + 3 * ASKED, expert_bytes=2_654_208)
    for horizon in (1, 4, TOKEN):
        of_recall(trace, horizon), of_lru(trace)  # compiles
        times = [(of_recall(trace, horizon), of_lru(trace)) for _ in range(pairs)]
        ours, lru = (statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"horizon {horizon}: recall {ours:.1f} µs a token and layer, lru {lru:.0f} ns a lookup"
        )


if __name__ == "__main__":
    main()
