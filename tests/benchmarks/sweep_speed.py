"""How much faster a sweep is on two workers of dask than on one, and than without dask.

    python tests/benchmarks/sweep_speed.py                    # traces of 10 million lookups
    python tests/benchmarks/sweep_speed.py --tokens 100       # small ones: what dask itself costs

Generated traces (48 layers, 128 experts, 8 selected) are swept by six policies at eleven budgets. Two
clusters, of one worker and of two with one thread each, wait side by side; the sweep runs on them and on
the threads of this process in turns. All results are compared. The figure of interest is the ratio of
one worker to two within a round, which should be at least 1.6 on two idle cores; the start of a
cluster does not count.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import tracekit
from tracekit.trace import synthesize, write_trace

LAYERS, EXPERTS, TOP_K = 48, 128, 8
POLICIES = ["lru", "lfu", "ring", "random", "layer-lru", "belady"]
FRACTIONS = np.linspace(0.05, 0.9, 11).round(3).tolist()


def write_study(folder, n_traces, tokens):
    """Write the traces and the study over them."""
    text = 'title = "Speed of sweeps"\n'
    for seed in range(n_traces):
        write_trace(synthesize(LAYERS, EXPERTS, TOP_K, tokens, seed=seed), folder / f"{seed}.trace")
        text += f'[traces.t{seed}]\nfile = "{seed}.trace"\n'
    text += f"[[run]]\npolicies = {POLICIES!r}\ncache_fraction = {FRACTIONS!r}\n".replace("'", '"')
    path = folder / "study.toml"
    path.write_text(text)
    return path


def main():
    from distributed import Client, LocalCluster

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--traces", type=int, default=6)
    parser.add_argument(
        "--tokens", type=int, default=26_000, help="of each trace; 384 lookups each"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    how = {"threads": None}
    with tempfile.TemporaryDirectory() as folder:
        study = write_study(Path(folder), arguments.traces, arguments.tokens)
        print(f"{arguments.traces} traces of {arguments.tokens * LAYERS * TOP_K:,} lookups")
        options = {"threads_per_worker": 1, "dashboard_address": "127.0.0.1:0", "memory_limit": 0}
        with (
            LocalCluster(n_workers=1, **options) as first,
            LocalCluster(n_workers=2, **options) as second,
            Client(first, set_as_default=False) as one,
            Client(second, set_as_default=False) as two,
        ):
            how |= {"one worker": one, "two workers": two}
            warm_up(study, how)
            seconds = {name: [] for name in how}
            for number in range(arguments.rounds):
                results = {}
                for name, client in how.items():
                    start = time.perf_counter()
                    results[name] = tracekit.sweep(study, executor=client).csv
                    seconds[name].append(time.perf_counter() - start)
                assert len({*results.values()}) == 1, "the results differ"
                print(f"round {number}:", *(f"{n} {s[-1]:.2f} s" for n, s in seconds.items()))
    for name, base in (("two workers", "one worker"), ("two workers", "threads")):
        ratios = [a / b for a, b in zip(seconds[base], seconds[name], strict=True)]
        print(f"{name}: {statistics.median(ratios):.2f} × as fast as {base}")


def warm_up(study, how):
    """Let every process load its machine code."""
    text = study.read_text()
    small = study.with_name("small.toml")
    small.write_text(text.replace(repr(FRACTIONS), "[0.5]"))
    for client in how.values():
        tracekit.sweep(small, executor=client)


if __name__ == "__main__":
    main()
