"""CPU time of whole commands, from the start of the process to its end.

    python tests/benchmarks/start_speed.py [--trace FILE] [--against FOLDER] [--runs N]

Each command runs in a process of its own: once to write what is kept between runs, then N times. The
figures are user and system time, medians. *First replay* has an empty folder for machine code each
time, so that it compiles. With `--against`, the same commands of another checkout run in turns with
these, and the ratio is the median over the pairs.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parents[2]
FIRST = "first replay"


def cpu_seconds(checkout: Path, words: list[str], machine_code: str | None) -> float:
    """Return the user and system time of ``tracekit *words``, run from `checkout`."""
    known = {"PYTHONPATH": os.pathsep.join([str(checkout), str(checkout / "engine")])}
    if machine_code is not None:
        known["NUMBA_CACHE_DIR"] = machine_code
    environment = os.environ | known
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # else sources are compiled at each start
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "tracekit", *words],
        env=environment,
        cwd=checkout,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def timed(words: list[str], is_first: bool) -> Callable[[Path], float]:
    """Return what times a command of a checkout; `is_first`: without machine code on disk."""

    def of(checkout: Path) -> float:
        if not is_first:
            return cpu_seconds(checkout, words, None)
        with tempfile.TemporaryDirectory() as folder:
            return cpu_seconds(checkout, words, folder)

    return of


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", default="bundled:tiny-moe-64e.trace", help="what is replayed")
    parser.add_argument("--against", type=Path, help="another checkout, timed in turns")
    parser.add_argument("--runs", type=int, default=9)
    given = parser.parse_args()
    trace = given.trace if given.trace.startswith("bundled:") else str(Path(given.trace).resolve())
    checkouts = [HERE, *([given.against.resolve()] if given.against else [])]
    commands = {
        "--help": ["--help"],
        "policies": ["policies"],
        "info": ["info", trace],
        "replay": ["replay", trace],
        FIRST: ["replay", trace],
    }
    for name, words in commands.items():
        of = timed(words, name == FIRST)
        for checkout in checkouts:
            of(checkout)
        runs = [[of(checkout) for checkout in checkouts] for _ in range(given.runs)]
        line = f"{name:12} {statistics.median(run[0] for run in runs):.2f} s"
        if given.against:
            line += f" against {statistics.median(run[1] for run in runs):.2f} s"
            line += f": {statistics.median(ours / theirs for ours, theirs in runs):.2f}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
