"""Does a replay predict how fast another cache would be, where each read is made slower by sleeping?

Run by hand: ``python tests/benchmarks/throttled_reader.py``. It records the bundled model A B B A at two
cache sizes, with a reader that sleeps a second for each MiB, fits each run, and predicts the typical token
of the other size. It takes four minutes, most of them asleep: a token has to take long beside what other
work of the machine adds.
"""

import argparse
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from tracekit.datasets import model_path
from tracekit.figures import MIB
from tracekit.replaying import replay
from tracekit.timing.comparison import compare
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE
from tracekit_engine import Generation, Options, Sampling, Streaming, record
from tracekit_engine.lanes import Lanes, Read, ReadTimes

PROMPT = "The old house at the end of the lane"


def slow_down(ms_per_mib: float) -> None:
    """Let every read of the engine sleep `ms_per_mib` for each MiB."""
    read = Lanes.read

    def slowly(lanes: Lanes, slices: Iterable[Read]) -> ReadTimes:
        asked = list(slices)
        done = read(lanes, asked)
        wait_ms = ms_per_mib * sum(stop - start for _, start, stop in asked) / MIB
        time.sleep(wait_ms / 1e3)
        return ReadTimes(done.io_ms + wait_ms, done.stall_ms + wait_ms, done.moved_bytes)

    Lanes.read = slowly


def typical_ms(trace: Trace) -> float:
    """Return what the typical decoded token took."""
    steps = trace.steps(["phase", "wall_ms"])
    return float(np.median(steps["wall_ms"][steps["phase"] == DECODE]))


def recorded(folder: Path, cache_mib: float, name: str, tokens: int) -> Trace:
    """Record a run."""
    path = folder / f"{name}.trace"
    generation = Generation(tokens, ignore_eos=True, sampling=Sampling(temperature=0.8, seed=1))
    options = Options(threads=1, streaming=Streaming(round(cache_mib * MIB), lanes=1))
    record(model_path(), PROMPT, path, options=options, generation=generation)
    return Trace.open(path)


def main() -> None:
    """Print predictions beside what was measured, and the comparison."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ms-per-mib", type=float, default=1000)
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--cache-mib", type=float, nargs=2, default=(1.2, 2.4))
    given = arguments.parse_args()
    slow_down(given.ms_per_mib)
    a, b = given.cache_mib
    with tempfile.TemporaryDirectory() as folder:
        turns = (("a1", a), ("b1", b), ("b2", b), ("a2", a))
        runs = [recorded(Path(folder), size, name, given.tokens) for name, size in turns]
        of_size = {a: (runs[0], runs[3]), b: (runs[1], runs[2])}
        for size, other in ((a, b), (b, a)):
            measured = ", ".join(f"{typical_ms(run):.1f}" for run in of_size[other])
            for run in of_size[size]:
                found = replay(run, "lru", cache_mib=other, time=True).rows[0].time
                if found is None or found.typical_ms is None:
                    why = "" if found is None else found.time_refusals
                    print(f"{size} MiB → {other} MiB: not predicted. {why}")
                    continue
                print(
                    f"{size} MiB → {other} MiB: {found.typical_ms:.1f} ms a token "
                    f"({found.typical_low_ms:.1f} to {found.typical_high_ms:.1f}); measured {measured}"
                )
        effect = compare(runs).effect
        print(f"compare: {100 * effect.change:+.1f} %, {effect.verdict}")


if __name__ == "__main__":
    main()
