"""Replay speed beside libcachesim, and the memory a replay takes.

    pip install -e '.[bench]' && python tests/benchmarks/replay_speed.py

It replays one generated trace of 48 layers × 128 experts × top-8 × 20,000 tokens: 7.7 million
lookups. Both programs run on one thread and in turns, so that a slow moment of the machine affects
both; the ratio is the median over the pairs. libcachesim reads the lookups with its native reader
from a file in memory (hash power 16). The time to construct it is excluded, as is the time to build
our batches. It evicts after every lookup and we evict after a layer's lookups, so hit rates differ
a little. Its LFU forgets the count of what was evicted, so it is another policy.

At many budgets we take what a replay takes: totals, in one pass for all budgets. The last line of each
size says how many times longer 60 budgets of a curve take than 11.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import libcachesim
import numpy as np
from peak_memory import own_peak_bytes

from tracekit.formats import open_any
from tracekit.policies import Batches, Policy, load_policy
from tracekit.replaying import build_batches, replay
from tracekit.trace import Trace, synthesize

LAYERS, EXPERTS, TOP_K = 48, 128, 8
FRACTIONS = (0.1, 0.25, 0.5)
CURVE = np.linspace(0.05, 0.9, 11)
FINE_CURVE = np.linspace(0.05, 0.9, 60)
SIZES = {
    "uniform": 2_654_208,
    "by layer": [3_059_712 if layer % 3 == 0 else 2_654_208 for layer in range(LAYERS)],
}


def generated(expert_bytes: int | list[int], n_tokens: int) -> Trace:
    """Return the trace that both programs replay."""
    return synthesize(LAYERS, EXPERTS, TOP_K, n_tokens, expert_bytes=expert_bytes)


def seconds(work: Callable[[], object]) -> float:
    """Return how long `work` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def write_lookups(batches: Batches, path: Path) -> None:
    """Write the lookups as libcachesim's oracleGeneral: time, key, size, next lookup of the key."""
    n = len(batches.keys)
    rows = np.zeros(n, [("time", "<u4"), ("key", "<u8"), ("size", "<u4"), ("next", "<i8")])
    rows["time"] = np.repeat(batches.step, batches.lookups)
    rows["key"] = batches.keys
    rows["size"] = batches.key_bytes[batches.keys]
    rows["next"] = np.where(batches.next_use < n, batches.next_use, -1)
    rows.tofile(path)


def theirs(name: str, path: Path, budget: int) -> float:
    """Return the seconds libcachesim takes."""
    kind = libcachesim.TraceType.ORACLE_GENERAL_TRACE
    reader = libcachesim.TraceReader(str(path), kind, libcachesim.ReaderInitParam())
    cache = getattr(libcachesim, name)(cache_size=budget, hashpower=16)
    return seconds(lambda: cache.process_trace(reader))


def their_curve(path: Path, budgets: np.ndarray) -> float:
    """Return the seconds libcachesim takes for LRU at each of `budgets`."""
    return sum(theirs("LRU", path, int(budget)) for budget in budgets)


def compare(label: str, pairs: int, lookups: int, ours: Callable, other: Callable) -> None:
    """Run both in turns; print nanoseconds a lookup and the ratio."""
    ours()  # compile it first
    times = [(seconds(ours), other()) for _ in range(pairs)]
    best = [1e9 * min(column) / lookups for column in zip(*times, strict=True)]
    ratio = statistics.median(b / a for a, b in times)
    print(f"{label:<28}{best[0]:>10.1f}{best[1]:>14.1f}{ratio:>9.1f}×", flush=True)


def simulate(policy: Policy, batches: Batches, budgets: np.ndarray) -> None:
    """Find totals as a replay does, and what several policies share anew."""
    for known in ("_uses", "passes", "first_lookups"):
        vars(batches).pop(known, None)
    if policy.gives_totals(batches, len(budgets)):
        policy.totals(batches, budgets)
    else:
        policy.simulate(batches, budgets)


def run(policy: Policy, batches: Batches, budgets: np.ndarray) -> None:
    """Replay with figures of each batch; the pass that finds next uses is included."""
    vars(batches).pop("_uses", None)
    policy.simulate(batches, budgets)


def against_libcachesim(n_tokens: int, pairs: int, folder: Path) -> None:
    """Print the table of ratios."""
    print(f"{'ns a lookup':<28}{'tracekit':>10}{'libcachesim':>14}{'ratio':>10}")
    for sizes, expert_bytes in SIZES.items():
        batches = build_batches(generated(expert_bytes, n_tokens))
        lookups, bank = len(batches.keys), batches.bank_bytes
        path = folder / "lookups.bin"
        write_lookups(batches, path)
        for name in ("LRU", "Belady", "LFU"):
            for fraction in FRACTIONS:
                budget = int(bank * fraction)
                ours = partial(run, load_policy(name.lower()), batches, np.array([budget]))
                label = f"{name}, {sizes}, {fraction:.0%}"
                compare(label, pairs, lookups, ours, partial(theirs, name, path, budget))
        budgets, fine = ((bank * curve).astype(np.int64) for curve in (CURVE, FINE_CURVE))
        compare(
            f"LRU, {sizes}, 11 budgets",
            pairs,
            lookups,
            partial(simulate, load_policy("lru"), batches, budgets),
            partial(their_curve, path, budgets),
        )
        lru = load_policy("lru")
        few, many = (partial(simulate, lru, batches, each) for each in (budgets, fine))
        ratio = statistics.median(seconds(many) / seconds(few) for _ in range(pairs))
        print(f"LRU, {sizes}, 60 budgets: {ratio:.2f}× the time of 11", flush=True)


def memory(n_tokens: int) -> None:
    """Print the bytes that a replay takes beyond the trace's columns; needs a new process."""
    names = ["lru", "lfu", "random", "layer-lru", "layer-lfu", "belady", "bound"]
    replay(generated(SIZES["by layer"], 10), names, cache_fraction=0.1, jobs=2)  # compile first
    trace = generated(SIZES["by layer"], n_tokens)
    trace.routing(["turn", "pass", "phase", "step", "layer", "experts"])
    # The peak so far is the generator's. Fill memory up to it, so that the replay raises it.
    peak = own_peak_bytes()
    spare = peak - _resident_bytes()
    filler = np.ones(max(spare, 0), np.uint8)
    replay(trace, names, cache_fraction=list(CURVE), jobs=2)
    grown = own_peak_bytes() - peak
    lookups = trace.n_rows * TOP_K
    print(
        f"11 budgets × {len(names)} policies on 2 threads: {grown / lookups:.1f} bytes a lookup "
        f"beyond the trace's columns (filler {filler.nbytes >> 20} MiB)"
    )


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def table(csv: Path) -> None:
    """Print how long a table of 11 budgets × 6 policies of a recorded trace takes in process."""
    trace = open_any(csv)
    names = ["lru", "lfu", "random", "layer-lru", "layer-lfu", "belady"]
    budgets = [250, 500, 750, 1000, 1500, 2000, 2500, 3000, 4000, 6000, 8000]

    def run() -> None:
        replay(trace, names, cache_mib=budgets)

    run()
    best = min(seconds(run) for _ in range(7))
    print(f"11 budgets × 6 policies of {csv.name}: {1000 * best:.0f} ms")


def main() -> None:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--pairs", type=int, default=7, help="runs of each of the two")
    parser.add_argument("--table", type=Path, metavar="CSV", help="a recorded trace, timed too")
    parser.add_argument("--memory", action="store_true", help="only measure memory")
    options = parser.parse_args()
    if options.memory:
        memory(options.tokens)
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        against_libcachesim(options.tokens, options.pairs, Path(folder))
    own = [sys.executable, __file__, "--memory", "--tokens", str(options.tokens)]
    subprocess.run(own, check=True)
    if options.table:
        table(options.table)


if __name__ == "__main__":
    main()
