"""Recordings through a reader of a known speed: a replay says how fast another cache would be."""

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import run

from tracekit import compare, meter
from tracekit.figures import MIB
from tracekit.replaying import replay
from tracekit.timing import fit
from tracekit.trace import Trace
from tracekit.trace.schema import DECODE
from tracekit_engine.lanes import Lanes, Read, ReadTimes

MS_PER_MIB = 20_000.0
SMALL, LARGE = 1.2, 2.4  # MiB
N_TOKENS = 128
PROMPT = "The old house at the end of the lane"


@pytest.fixture
def slow_flash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each read take twenty seconds a MiB longer, on a device whose memory nothing else uses.

    These seconds pass on the clock that the engine reads, and nobody waits for them. So they are long
    beside what other work of the machine adds to the time of a token.
    """
    read, clock, waited = Lanes.read, time.perf_counter, [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + waited[0])

    def slowly(lanes: Lanes, slices: Iterable[Read]) -> ReadTimes:
        asked = list(slices)
        done = read(lanes, asked)
        wait_ms = MS_PER_MIB * sum(stop - start for _, start, stop in asked) / MIB
        waited[0] += wait_ms / 1e3
        return ReadTimes(done.io_ms + wait_ms, done.stall_ms + wait_ms, done.moved_bytes)

    monkeypatch.setattr(Lanes, "read", slowly)
    memory = tmp_path / "meminfo"
    memory.write_text("MemTotal: 8388608 kB\nMemFree: 6291456 kB\nMemAvailable: 6291456 kB\n")
    monkeypatch.setattr(meter, "MEMORY_FILE", str(memory))


def median_ms(trace: Trace) -> float:
    steps = trace.steps(["phase", "wall_ms"])
    return float(np.median(steps["wall_ms"][steps["phase"] == DECODE]))


@pytest.mark.slow
@pytest.mark.usefixtures("slow_flash")
def test_a_replay_predicts_the_other_cache_size(tmp_path: Path) -> None:
    done = run(
        *("record", "-p", PROMPT, "-n", N_TOKENS, "--ignore-eos", "--temp", 0.8, "--seed", 1),
        *("--threads", 1, "--stream", "--io-threads", 1, "--cache-mib", SMALL),
        *("--rounds", 2, "--versus", f"--cache-mib {LARGE}", "--pause", 0),
        *("-o", tmp_path / "run.trace"),
    )
    assert done.code == 0, done.err
    runs = [Trace.open(tmp_path / f"run-{name}.trace") for name in ("a1", "b1", "b2", "a2")]
    small, large, large_again, small_again = runs
    for calibrated, cache_mib, others in (
        (small, LARGE, (large, large_again)),
        (small_again, LARGE, (large, large_again)),
        (large, SMALL, (small, small_again)),
        (large_again, SMALL, (small, small_again)),
    ):
        assert fit(calibrated).b_ms_per_mib == pytest.approx(MS_PER_MIB, rel=0.15)
        predicted = replay(calibrated, "lru", cache_mib=cache_mib, time=True).rows[0].time
        assert predicted is not None
        for other in others:
            assert predicted.typical_low_ms is not None
            assert predicted.typical_high_ms is not None
            assert predicted.typical_low_ms < median_ms(other) < predicted.typical_high_ms
    assert compare(runs).effect.verdict == "faster"
