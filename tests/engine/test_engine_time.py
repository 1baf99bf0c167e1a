"""Recordings through a reader of a known speed: a replay says how fast another cache would be."""

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tracekit import datasets
from tracekit.figures import MIB
from tracekit.replaying import replay
from tracekit.timing import fit
from tracekit.trace import Trace
from tracekit_engine import Generation, Options, Sampling, Streaming, record
from tracekit_engine.lanes import Lanes, Read, ReadTimes

# So slow that what else the machine does hardly shows.
MS_PER_MIB = 200.0
SIZES = (1.2, 2.4)  # MiB
N_TOKENS = 128
PROMPT = "The old house at the end of the lane"


@pytest.fixture
def slow_flash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make each read take 200 ms a MiB longer."""
    read = Lanes.read

    def slowly(lanes: Lanes, slices: Iterable[Read]) -> ReadTimes:
        asked = list(slices)
        done = read(lanes, asked)
        wait_ms = MS_PER_MIB * sum(stop - start for _, start, stop in asked) / MIB
        time.sleep(wait_ms / 1e3)
        return ReadTimes(done.io_ms + wait_ms, done.stall_ms + wait_ms, done.moved_bytes)

    monkeypatch.setattr(Lanes, "read", slowly)


def recorded(path: Path, cache_mib: float) -> Trace:
    record(
        datasets.model_path(),
        [PROMPT],
        path,
        options=Options(threads=1, streaming=Streaming(round(cache_mib * MIB), lanes=1)),
        generation=Generation(
            N_TOKENS, ignore_eos=True, sampling=Sampling(temperature=0.8, seed=1)
        ),
    )
    return Trace.open(path)


@pytest.mark.slow
@pytest.mark.usefixtures("slow_flash")
def test_a_replay_predicts_the_other_cache_size(tmp_path: Path) -> None:
    small, large, large_again, small_again = (
        recorded(tmp_path / f"{n}.trace", SIZES[at]) for n, at in enumerate((0, 1, 1, 0))
    )
    for run, cache_mib, others in (
        (small, SIZES[1], (large, large_again)),
        (large, SIZES[0], (small, small_again)),
    ):
        assert fit(run).b_ms_per_mib == pytest.approx(MS_PER_MIB, rel=0.15)
        predicted = replay(run, "lru", cache_mib=cache_mib, time=True).rows[0].time
        assert predicted is not None
        for other in others:
            steps = other.steps(["phase", "wall_ms"])
            measured = np.median(steps["wall_ms"][steps["phase"] == 1])
            assert predicted.typical_low_ms is not None
            assert predicted.typical_high_ms is not None
            assert predicted.typical_low_ms < measured < predicted.typical_high_ms
