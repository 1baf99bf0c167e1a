"""Recordings that are killed: every pass that was on the disk is still there, and replays exactly.

``python tests/fuzz/kills.py KILLS [KILLS_AT_CLOSE] [SEED]`` records from the bundled model, every
second time with ``--stream``, and kills each recording: KILLS at a random moment, and KILLS_AT_CLOSE
while the parts are made into one file. It prints what came out, and each recording that lost
something; the exit code is 1 if there was one.
"""

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tracekit
from tracekit.trace import Trace

COLUMNS = ["turn", "pass", "phase", "step", "layer", "experts"]
FILES = ("routing", "steps")
N_PROMPTS, N_TOKENS = 3, 64
STREAMED = ["--stream", "--cache-mib", "2.4"]


def start(out: Path, streamed: bool) -> subprocess.Popen[bytes]:
    prompts = out.with_suffix(".jsonl")
    prompts.write_text('"It was a bright cold day in April"\n' * N_PROMPTS)
    command = [sys.executable, "-m", "tracekit", "record", "--prompts", str(prompts), "-q"]
    command += [
        "-n",
        str(N_TOKENS),
        "--ignore-eos",
        "--threads",
        "1",
        "--temp",
        "0",
        "-o",
        str(out),
    ]
    return subprocess.Popen(
        [*command, *(STREAMED if streamed else [])], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )


def flushed_passes(out: Path) -> int:
    """Return how many passes both files have on the disk; only whole files have their last name."""
    found = []
    for name in FILES:
        tables = [pq.read_table(part, columns=["pass"]) for part in out.glob(f"{name}-*.parquet")]
        found.append(len(pa.concat_tables(tables)["pass"].unique()) if tables else 0)
    return min(found)


def wait_until(happened, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None and not happened():
        time.sleep(0.0005)


def is_closing(out: Path) -> bool:
    """Say whether the recorder has begun to write the whole files."""
    return any(
        (name + ".parquet") in each.name and "-" not in each.name
        for name in FILES
        for each in out.glob(f"*{name}.parquet*")
    )


def kill(process: subprocess.Popen[bytes], out: Path) -> int:
    """Stop the process, count what it has flushed, and kill it."""
    process.send_signal(signal.SIGSTOP)
    flushed = flushed_passes(out) if out.exists() else 0
    process.send_signal(signal.SIGKILL)
    _, stderr = process.communicate()
    if process.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(f"exit code {process.returncode}: {stderr.decode()[-300:]}")
    return flushed


def check(out: Path, flushed: int, streamed: bool, whole: Trace) -> str:
    """Compare what is left of a recording with one that was not killed; return what came out."""
    if not out.exists():
        assert flushed == 0
        return "killed before the first part"
    trace = Trace.open(out)
    assert trace.complete == (trace.warnings == [])
    rows, expected = trace.routing(COLUMNS), whole.routing(COLUMNS)
    n_passes = len(np.unique(rows["pass"]))
    assert n_passes >= flushed, f"{n_passes} passes of {flushed} that were flushed"
    for name in COLUMNS:
        assert np.array_equal(rows[name], expected[name][: trace.n_rows]), name
    assert not trace.complete or trace.n_rows == whole.n_rows
    if streamed and trace.n_decoded:
        (row,) = tracekit.replay(trace, ["lru"], validate=True).rows
        assert row.validation.lookups > 0
        assert row.validation.mismatches == 0, f"{row.validation} in the replay"
    return "complete" if trace.complete else "readable, incomplete"


def one(number: int, at_close: bool, seed: int, folder: Path, wholes: dict[bool, Trace]) -> str:
    rng = random.Random(f"{seed} {number} {at_close}")
    streamed = number % 2 == 1
    out = folder / f"{number}-{at_close}.trace"
    process = start(out, streamed)
    if at_close:
        wait_until(lambda: is_closing(out), process)
        time.sleep(rng.uniform(0, 0.02))
    else:
        # A run takes a few seconds; a third of the kills come while it starts.
        wait_until(lambda: out.exists(), process) if rng.random() < 2 / 3 else None
        time.sleep(rng.uniform(0, 4))
    return check(out, kill(process, out), streamed, wholes[streamed])


def main(kills: int, at_close: int, seed: int) -> int:
    came_out: Counter[str] = Counter()
    n_lost = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wholes = {}
        for streamed in (False, True):
            out = folder / f"whole-{streamed}.trace"
            assert start(out, streamed).wait() == 0
            wholes[streamed] = Trace.open(out)
        for number, is_at_close in [(n, False) for n in range(kills)] + [
            (n, True) for n in range(at_close)
        ]:
            what = "at close" if is_at_close else "at a random moment"
            try:
                came_out[f"{what}: {one(number, is_at_close, seed, folder, wholes)}"] += 1
            except Exception as error:
                n_lost += 1
                print(f"kill {number} {what}: {type(error).__name__}: {error}", flush=True)
            left = [each.name for each in folder.iterdir() if each.name.endswith(".tmp")]
            came_out["left beside it: a folder that the next recording removes"] += len(left)
            for each in folder.iterdir():
                if not each.name.startswith("whole"):
                    subprocess.run(["rm", "-rf", str(each)], check=True)
    for what, count in sorted(came_out.items()):
        print(f"{count:6}  {what}")
    print(f"{n_lost:6}  lost something")
    return 1 if n_lost else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    given = [int(argument) for argument in sys.argv[1:]]
    sys.exit(main(*given, *[200, 50, 0][len(given) :]))
