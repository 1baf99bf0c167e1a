"""How often does `tracekit compare` claim a difference between equal configurations, on this machine?

Run by hand: ``python tests/benchmarks/compare_equal.py``. It records the bundled model A B B A, where B is
the same configuration as A, compares the four runs, and does so 20 times. A 95 % interval leaves out 0 in
one of twenty such comparisons; 3 of 20 are still likely, more are not. Other work of the machine is part
of what is measured: it must not make the interval too narrow.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np

from tracekit.datasets import model_path
from tracekit.figures import MIB
from tracekit.timing.comparison import Comparison, compare
from tracekit.trace import Trace
from tracekit_engine import Generation, Options, Sampling, Streaming, record

PROMPT = "The old house at the end of the lane"


def compared(folder: Path, streaming: Streaming | None, tokens: int) -> Comparison:
    """Record A B B A of one configuration, and compare the runs."""
    generation = Generation(tokens, ignore_eos=True, sampling=Sampling(temperature=0.8))
    options = Options(threads=1, streaming=streaming)
    runs = []
    for name in ("a1", "b1", "b2", "a2"):
        path = folder / f"{name}.trace"
        record(model_path(), PROMPT, path, options=options, generation=generation, force=True)
        runs.append(Trace.open(path))
    return compare(runs)


def main() -> None:
    """Print each comparison, and how many claim a difference."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--times", type=int, default=20)
    arguments.add_argument("--tokens", type=int, default=256)
    arguments.add_argument("--cache-mib", type=float, help="Default: all experts in memory.")
    given = arguments.parse_args()
    streaming = Streaming(round(given.cache_mib * MIB), lanes=1) if given.cache_mib else None
    claims, spreads = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, given.times + 1):
            found = compared(Path(folder), streaming, given.tokens)
            effect = found.effect
            assert effect.interval is not None
            low, high = (100 * end for end in effect.interval)
            spreads.append(effect.by_run.std(ddof=1))
            claims += effect.is_shown
            print(
                f"{number:3}: {100 * effect.change:+6.2f} % ({low:+6.2f} to {high:+6.2f}), "
                f"{effect.verdict}; typical token "
                f"{', '.join(format(run.typical_ms, '.3f') for run in found.runs)} ms",
                flush=True,
            )
    print(
        f"{claims} of {given.times} comparisons of equal configurations claim a difference; runs differ "
        f"by {100 * float(np.sqrt(np.mean(np.square(spreads)))):.1f} % (standard deviation)."
    )


if __name__ == "__main__":
    main()
