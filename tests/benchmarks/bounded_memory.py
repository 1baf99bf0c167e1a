"""Memory of a streamed recording: a model of real layer sizes, several times its budget.

Run by hand: ``python tests/benchmarks/bounded_memory.py FOLDER``. Writes a model of 6.3 GB to
FOLDER and removes it. Anonymous memory is sampled from the kernel's count. It must stay below the
sum of the budget, the dense weights and 300 MiB.
"""

import argparse
import sys
import threading
import time
from pathlib import Path

import real_size

from tracekit.figures import MIB
from tracekit_engine import Generation, Options, Streaming, record
from tracekit_engine.model_file import ModelFile

ALLOWANCE = 300 * MIB


def anonymous_bytes() -> int:
    """Return the process's resident anonymous memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel does not count anonymous memory")


class Peak(threading.Thread):
    """Samples anonymous memory every 5 ms."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._done = threading.Event()

    def run(self) -> None:
        """Sample until stopped."""
        while not self._done.wait(0.005):
            self.bytes = max(self.bytes, anonymous_bytes())

    def stop(self) -> int:
        """Return the largest sample."""
        self._done.set()
        self.join()
        return self.bytes


def main() -> int:
    """Write the model, record it streamed, print the peak and the bound."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("folder", type=Path)
    arguments.add_argument("--layers", type=int, default=18)
    arguments.add_argument("--cache-mib", type=int, default=1000)
    arguments.add_argument("--direct-io", action="store_true")
    given = arguments.parse_args()
    path, out = given.folder / "real-size.gguf", given.folder / "bounded-memory.trace"
    print(f"writing {path}")
    real_size.write(path, given.layers)
    try:
        file = ModelFile.open(path)
        dense, path_bytes = sum(file.dense_bytes.values()), file.file_bytes
        budget = given.cache_mib * MIB
        options = Options(streaming=Streaming(budget, 4, given.direct_io))
        peak = Peak()
        peak.start()
        started = time.monotonic()
        text = "It was a bright cold day in April, and the clocks were striking thirteen. " * 12
        done = record(
            path,
            [text],
            out,
            options=options,
            generation=Generation(64, ignore_eos=True),
            force=True,
        )
        highest = peak.stop()
    finally:
        path.unlink(missing_ok=True)
    bound = budget + dense + ALLOWANCE
    progress = done.progress
    print(
        f"model {path_bytes / 1e9:.1f} GB, budget {budget / MIB:,.0f} MiB, "
        f"{progress.prefilled} prompt and {progress.decoded} decoded tokens in "
        f"{time.monotonic() - started:.0f} s, {progress.totals.read_bytes / MIB:,.0f} MiB read"
    )
    print(
        f"peak anonymous memory {highest / MIB:,.0f} MiB, bound {bound / MIB:,.0f} MiB "
        f"(budget + {dense / MIB:,.0f} dense + {ALLOWANCE / MIB:,.0f}): ratio {highest / bound:.2f}"
    )
    return 0 if highest < bound else 1


if __name__ == "__main__":
    sys.exit(main())
