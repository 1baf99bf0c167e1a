"""How often does `tracekit compare` claim a difference between equal configurations, on this machine?

Run by hand: ``python tests/benchmarks/compare_equal.py``. It records the bundled model A B B A, where B is
the same configuration as A, compares the four runs, and does so 20 times. A 95 % interval leaves out 0 in
one of twenty such comparisons; 3 of 20 are still likely, more are not. Other work of the machine is part
of what is measured: it must not make the interval too narrow.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PROMPT = "The old house at the end of the lane"


def tracekit(*words: object) -> str:
    """Run a command; return what it prints."""
    command = [sys.executable, "-m", "tracekit", *map(str, words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compared(folder: Path, options: list[str], tokens: int, pause: float) -> dict[str, Any]:
    """Record A B B A of one configuration; return what `compare` says."""
    tracekit(
        *("record", "-p", PROMPT, "-n", tokens, "--ignore-eos", "--temp", 0.8, "-q"),
        *("--threads", 1, "--rounds", 2, "--versus", "", "--pause", pause),
        *options,
        *("-o", folder / "run.trace", "--force"),
    )
    runs = [folder / f"run-{name}.trace" for name in ("a1", "b1", "b2", "a2")]
    found: dict[str, Any] = json.loads(tracekit("compare", *runs, "--format", "json"))
    return found


def main() -> None:
    """Print each comparison, and how many claim a difference."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--times", type=int, default=20)
    arguments.add_argument("--tokens", type=int, default=256)
    arguments.add_argument("--cache-mib", type=float, default=1.5)
    arguments.add_argument("--pause", type=float, default=0.0)
    given = arguments.parse_args()
    options = ["--stream", "--cache-mib", str(given.cache_mib), "--io-threads", "1"]
    claims, spreads = 0, []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(1, given.times + 1):
            found = compared(Path(folder), options, given.tokens, given.pause)
            low, high = (100 * end for end in found["interval"])
            of_runs = np.log1p([run["against_all"] for run in found["runs"]])
            spreads.append(of_runs.std(ddof=1))
            claims += found["verdict"] != "no difference shown"
            print(
                f"{number:3}: {100 * found['change']:+6.2f} % ({low:+6.2f} to {high:+6.2f}), "
                f"{found['verdict']}; typical token "
                f"{', '.join(format(run['typical_ms'], '.3f') for run in found['runs'])} ms",
                flush=True,
            )
    print(
        f"{claims} of {given.times} comparisons of equal configurations claim a difference; runs differ "
        f"by {100 * float(np.sqrt(np.mean(np.square(spreads)))):.1f} % (standard deviation)."
    )


if __name__ == "__main__":
    main()
