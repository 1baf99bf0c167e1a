"""Print all figures of docs/speed.md, in the order of that page.

    python tests/benchmarks/all.py [--quick] [--trace qwen.route.csv] [--folder DIR]

Each benchmark runs as a process of its own. After its figures stand the processor time and the peak
memory, VmHWM, of the largest process that it had. ``--quick`` shows within minutes that all of them
still run: its figures are of small runs, and none of the page. Recording benchmarks write 6.3 GB to the
folder, and are left out of a quick run. A benchmark that fails is named at the end.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from peak_memory import run_measured

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Benchmark:
    """A script of this folder, and how it is called.

    Attributes
    ----------
    section : str
        Of docs/speed.md.
    script : str
    words : list of str
        Always given.
    quick : list of str
        Given besides in a quick run.
    env : dict
    """

    section: str
    script: str
    words: list[str] = field(default_factory=list)
    quick: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)


def benchmarks(folder: Path, trace: Path | None, is_quick: bool) -> Iterator[Benchmark]:
    """Iterate over the benchmarks in the order of the page; `trace` is a recorded one."""
    table = ["--table", str(trace)] if trace else []
    replayed = ["--trace", str(trace)] if trace else []
    pairs = ["--pairs", "5"]
    yield Benchmark(
        "Replay", "replay_speed.py", [*pairs, *table], ["--tokens", "1000", "--pairs", "3"]
    )
    yield Benchmark("Replay", "policy_speed.py", quick=["--tokens", "100", "--rounds", "2"])
    big = str(folder / "big.trace")
    yield Benchmark("Replay from disk", "large_trace.py", [big], ["--lookups", "1e6"])
    commands = [
        f"replay {big} --from-disk --policy {policy} --cache-fraction 0.1,0.25"
        for policy in ("lru", "lfu", "follow", "belady", "bound")
    ]
    commands += [f"info {big}", f"predict {big} --predictor prev-token"]
    yield Benchmark("Replay from disk", "command_memory.py", commands)
    for tokens in (200,) if is_quick else (200_000, 20_000):
        long, page = (str(folder / f"{tokens}.{kind}") for kind in ("trace", "html"))
        size = ["--layers", "48", "--lookups", str(tokens * 48 * 8)]
        yield Benchmark("Report", "large_trace.py", [long, *size])
        yield Benchmark("Report", "command_memory.py", [f"report {long} -o {page}"])
    few = ["--traces", "2", "--tokens", "100", "--rounds", "1"]
    yield Benchmark("Sweeps on a cluster", "sweep_speed.py", quick=few)
    slots = ["--slots", "200000"]
    yield Benchmark("Importing", "import_speed.py", [str(folder)], slots)
    yield Benchmark("Scoring predictors", "recall_speed.py", quick=["--pairs", "1"])
    one_thread = {"OPENBLAS_NUM_THREADS": "1"}
    yield Benchmark(
        "Scoring predictors",
        "score_speed.py",
        quick=["--tokens", "500", "--rounds", "1"],
        env=one_thread,
    )
    few = ["--times", "1", "--tokens", "48"]
    yield Benchmark("Recording", "compare_equal.py", quick=few)
    short = ["--ms-per-mib", "20", "--tokens", "96"]
    yield Benchmark("Recording", "throttled_reader.py", quick=short)
    if not is_quick:
        yield Benchmark("Recording", "record_cost.py", [str(folder)])
        yield Benchmark("Recording", "bounded_memory.py", [str(folder)])
    yield Benchmark("Starting", "start_speed.py", replayed, ["--runs", "1"])


def main() -> None:
    """Run all benchmarks, one after the other."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--quick", action="store_true", help="small runs: do they still work?")
    arguments.add_argument("--trace", type=Path, help="a recorded trace, as qwen.route.csv")
    arguments.add_argument("--folder", type=Path, help="where files are written, and removed")
    given = arguments.parse_args()
    trace = given.trace.resolve() if given.trace else None
    failed = []
    section = ""
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for each in benchmarks(Path(folder), trace, given.quick):
            if each.section != section:
                section = each.section
                print(f"\n## {section}", flush=True)
            words = [*each.words, *(each.quick if given.quick else [])]
            print(f"\n{each.script} {' '.join(words)}", flush=True)
            command = [sys.executable, str(HERE / each.script), *words]
            code, cpu_s, peak_mib = run_measured(command, {**os.environ, **each.env})
            print(f"[{cpu_s:,.1f} s of processor time, peak {peak_mib:,.0f} MiB]", flush=True)
            if code:
                failed.append(f"{each.script} (exit code {code})")
    if failed:
        sys.exit(f"These benchmarks failed: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
