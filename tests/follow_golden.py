"""The golden decisions of `follow`, for whoever ports it: ``python tests/follow_golden.py`` writes them.

``data/follow-decisions.csv`` has a row for each batch of a small run: what it asked for, what hit and
what was evicted after it, in order.
"""

import csv
from itertools import pairwise
from pathlib import Path

import numpy as np
from cache_runs import Run

from tracekit.policies import Batches, Follow
from tracekit.replaying import build_batches
from tracekit.trace import synthesize

FILE = Path(__file__).resolve().parents[1] / "data" / "follow-decisions.csv"
N_LAYERS, N_EXPERT, TOP_K = 3, 8, 2
BUDGET = 9  # experts, each of size 1
COLUMNS = ("turn", "pass", "phase", "layer", "tokens", "hits", "evicted")


def run_in_file() -> tuple[Run, list[list[str]], list[list[int]]]:
    """Return the run of the file; of each batch the keys that hit, as ``layer:expert``, and the victims."""
    with FILE.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    passes: dict[int, tuple] = {}
    step = 0
    for row in rows:
        number = int(row["pass"])
        tokens = [tuple(map(int, token.split())) for token in row["tokens"].split("|")]
        if number not in passes:
            passes[number] = (int(row["turn"]), row["phase"] == "decode", step, {})
            step += len(tokens)
        passes[number][3][int(row["layer"])] = tokens
    run = Run(dict.fromkeys(range(N_LAYERS), 1), N_EXPERT, TOP_K, tuple(passes.values()))
    hits = [row["hits"].split() for row in rows]
    evicted = [[key_of(name) for name in row["evicted"].split()] for row in rows]
    return run, hits, evicted


def key_of(name: str) -> int:
    layer, expert = map(int, name.split(":"))
    return layer * N_EXPERT + expert


def names_of(keys: np.ndarray) -> list[str]:
    return [f"{key // N_EXPERT}:{key % N_EXPERT}" for key in keys]


def hits_of(batches: Batches, hit: np.ndarray) -> list[list[str]]:
    """Return the keys of each batch that hit, by name, in ascending order."""
    return [
        names_of(np.sort(batches.keys[a:b][hit[a:b]])) for a, b in pairwise(batches.batch_start)
    ]


def main() -> None:
    """Replay a drawn run and write every decision."""
    trace = synthesize(N_LAYERS, N_EXPERT, TOP_K, 48, n_turns=2, prefill=5, expert_bytes=1)
    batches = build_batches(trace)
    (cell,) = Follow().simulate(batches, np.array([BUDGET]), per_lookup=True)
    hits = hits_of(batches, cell.hit)
    victims = Follow().victims(batches, BUDGET)
    rows, row_start = batches.routing_rows()
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for b in range(len(batches)):
            tokens = rows[row_start[b] : row_start[b + 1]].tolist()
            writer.writerow(
                (
                    batches.turn[b],
                    batches.pass_id[b],
                    "decode" if batches.phase[b] else "prefill",
                    batches.layer[b],
                    "|".join(" ".join(map(str, token)) for token in tokens),
                    " ".join(hits[b]),
                    " ".join(names_of(np.array(victims[b], int))),
                )
            )


if __name__ == "__main__":
    main()
