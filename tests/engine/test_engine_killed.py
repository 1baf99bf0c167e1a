"""A recording that is killed keeps what it had flushed; one ended by Ctrl-C is complete."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tracekit.trace import Trace

TIMES = 50
FIRST_PART_SECONDS = 60.0


def start(model: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tracekit", "record", str(model), "-p", "abc", "-o", str(out)]
    command += ["-n", "1000000", "--ctx", "1024", "--ignore-eos", "--threads", "1"]
    # The context is full after a thousand tokens; two thousand turns take longer than the test.
    prompts = out.with_suffix(".jsonl")
    prompts.write_text('"abc"\n' * 2000)
    return subprocess.Popen([*command, "--prompts", str(prompts)], stderr=subprocess.PIPE)


def wait_for_a_part(out: Path, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + FIRST_PART_SECONDS
    while not list(out.glob("steps-*.parquet")):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def closed_passes(out: Path, name: str) -> int:
    parts = sorted(out.glob(f"{name}-*.parquet"))
    return 1 + max(max(pq.read_table(part, columns=["pass"])["pass"].to_pylist()) for part in parts)


@pytest.mark.slow  # the fast suite kills a writer: test_writer
@pytest.mark.parametrize("number", range(TIMES))
def test_killed(model: Path, tmp_path: Path, number: int) -> None:
    out = tmp_path / "run.trace"
    process = start(model, out)
    wait_for_a_part(out, process)
    time.sleep(random.Random(number).uniform(0, 1.5))
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stderr.close()

    trace = Trace.open(out)
    assert not trace.complete
    passes = trace.steps(["pass"])["pass"]
    flushed = min(closed_passes(out, "routing"), closed_passes(out, "steps"))
    assert passes[-1] + 1 == flushed
    assert trace.routing(["pass"])["pass"][-1] + 1 == flushed
    assert "incomplete" in trace.warnings[0]
    if number == 0:
        info = [sys.executable, "-m", "tracekit", "info", str(out)]
        done = subprocess.run(info, capture_output=True, text=True, check=True)
        assert done.stderr.count("incomplete") == 1


@pytest.mark.slow  # the fast suite interrupts in its own process: test_engine_interrupts
def test_interrupted(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    process = start(model, out)
    wait_for_a_part(out, process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    trace = Trace.open(out)
    assert trace.complete
    assert trace.facts.ended == "interrupted"
    assert not list(out.glob("*-0*.parquet"))
    last_line = stderr.decode().strip().splitlines()[-1]
    assert last_line == f"tracekit replay {out}"


@pytest.mark.slow
def test_a_limit_on_file_sizes(model: Path, tmp_path: Path) -> None:
    import resource

    out = tmp_path / "run.trace"
    command = [sys.executable, "-m", "tracekit", "record", str(model), "-p", "a" * 900, "-n", "0"]
    limited = subprocess.run(
        [*command, "-o", str(out)],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert limited.returncode == 1
    assert "would be larger than is allowed" in limited.stderr
    assert "Traceback" not in limited.stderr
    assert not any(path.suffix == ".tmp" for path in tmp_path.rglob("*"))
    if out.exists():
        assert not Trace.open(out).complete
