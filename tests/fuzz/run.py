"""Fuzz the readers: ``python tests/fuzz/run.py --inputs 1000000 --seed 1``.

Prints for each reader how its inputs ended, and each fault with the number that draws it again:
``--reader NAME --first NUMBER --inputs 1``. The exit code is 1 if there was a fault.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "engine")]

import harness  # noqa: E402
from gguf_headers import GgufHeaders  # noqa: E402
from route_traces import RouteTraces  # noqa: E402
from studies import Studies  # noqa: E402
from texts import Commands, Names, Options, Prompts  # noqa: E402
from trace_folders import TraceFolders  # noqa: E402

# Of so many inputs each reader gets this share; cheap ones get more.
READERS: dict[str, tuple[Callable[[Path], harness.Fuzzer], float]] = {
    RouteTraces.name: (RouteTraces, 0.25),
    TraceFolders.name: (TraceFolders, 0.1),
    Studies.name: (Studies, 0.1),
    GgufHeaders.name: (GgufHeaders, 0.2),
    Prompts.name: (Prompts, 0.1),
    Options.name: (Options, 0.15),
    Names.name: (Names, 0.09),
    Commands.name: (Commands, 0.01),
}


def fuzz(inputs: int, seed: int, only: str | None = None, first: int = 0) -> harness.Report:
    """Give about `inputs` inputs to the readers; print what came out."""
    total = harness.Report()
    shares = {name: share for name, (_, share) in READERS.items() if only in (None, name)}
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        for name, share in shares.items():
            start = time.monotonic()
            count = max(1, round(inputs * share / sum(shares.values())))
            fuzzer = READERS[name][0](Path(folder))
            report = harness.run(fuzzer, seed, count, first, lambda line: print(line, flush=True))
            total.add(report)
            counted = ", ".join(f"{n} {what}" for what, n in sorted(report.counts.items()))
            print(
                f"{name}: {count} inputs in {time.monotonic() - start:.0f} s: {counted}", flush=True
            )
    return total


def _memory() -> str | None:
    """Return a folder in memory, where there is one: inputs are written and read there."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", choices=READERS)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    report = fuzz(given.inputs, given.seed, given.reader, given.first)
    print(f"{report.counts.total()} inputs, {len(report.faults)} faults")
    return int(bool(report.faults))


if __name__ == "__main__":
    sys.exit(main())
