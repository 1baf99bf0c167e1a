"""Time and peak memory of commands, one process each.

    python tests/benchmarks/command_memory.py "info big.trace" "predict big.trace --predictor prev-token"

Times are those of the processor and of the clock. The peak is the kernel's VmHWM of the process itself: ``ru_maxrss`` survives exec, and would count
the memory of whoever started it.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys

_CHILD = """
import atexit, os, sys

def say():
    text = open("/proc/self/status").read()
    peak = next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM"))
    print(f"PEAK {peak}", file=sys.stderr)

atexit.register(say)
sys.argv = ["tracekit", *sys.argv[1:]]
from tracekit.cli import main
main()
"""


def measured(command: str) -> tuple[float, float, float, int]:
    """Run a command; return its times in s, of processor and clock, its peak in MiB, and its exit code."""
    before = os.times()
    run = subprocess.run(
        [sys.executable, "-c", _CHILD, *shlex.split(command)], capture_output=True, text=True
    )
    after = os.times()
    if run.returncode:
        print(run.stderr, file=sys.stderr)
    cpu_s = sum(after[2:4]) - sum(before[2:4])
    found = re.search(r"PEAK (\d+)", run.stderr)
    peak_mib = int(found[1]) / 1024 if found else float("nan")
    return cpu_s, after.elapsed - before.elapsed, peak_mib, run.returncode


def main() -> None:
    """Measure the commands that are given."""
    arguments = argparse.ArgumentParser()
    arguments.add_argument("commands", nargs="+")
    arguments.add_argument("--runs", type=int, default=1)
    given = arguments.parse_args()
    for _ in range(given.runs):
        for command in given.commands:
            cpu_s, clock_s, peak_mib, code = measured(command)
            failed = f", exit code {code}" if code else ""
            print(
                f"{cpu_s:7.1f} s ({clock_s:,.1f} s) {peak_mib:8,.0f} MiB  {command}{failed}",
                flush=True,
            )


if __name__ == "__main__":
    main()
