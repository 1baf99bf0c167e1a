"""The recorder compares its own trace with a replay as it ends, and says if they differ."""

import functools
from pathlib import Path

import numpy as np
import pytest
from cli_helpers import run
from exact_engine import session

from tracekit.formats import open_any
from tracekit.replaying.agreement import verify
from tracekit.trace import Trace, TracekitError, TraceWriter
from tracekit_engine import Generation, Options, Progress, Streaming, record, recorder
from tracekit_engine.own_check import compare_with_lru
from tracekit_engine.store import ExpertStore

RUN = ("-p", "It was a bright cold day", "-n", "12")
STREAMED = (*RUN, "--stream", "--cache-mib", "0.05")


def test_a_streamed_recording_carries_that_it_agrees(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    done = run("record", model, *STREAMED, "-o", out)
    assert (done.code, "differs" in done.err) == (0, False)
    trace = Trace.open(out)
    agreement = trace.facts.current_agreement
    assert agreement is not None
    assert agreement.holds
    assert agreement == verify(trace)
    assert agreement.n_passes == 13
    assert "none of " in run("info", out).out


def test_a_resident_recording_has_nothing_to_compare(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    assert run("record", model, *RUN, "-o", out).code == 0
    assert Trace.open(out).facts.agreement is None


def test_a_store_that_is_wrong_is_called_a_fault_of_the_recorder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ExpertStore.load

    def lies(store: ExpertStore, layer: int, selected: np.ndarray) -> np.ndarray:
        residency = load(store, layer, selected)
        residency[-1, 0] ^= 1
        return residency

    monkeypatch.setattr(ExpertStore, "load", lies)
    out = tmp_path / "run.trace"
    done = run("record", model, *STREAMED, "-o", out)
    assert done.code == 0  # the routing is sound
    assert done.err.count("differs from the recording in ") == 1
    assert "; tracekit recorded it itself, so its recorder is at fault or the trace was" in done.err
    assert not Trace.open(out).facts.current_agreement.holds
    assert run("replay", out).err.count("its recorder is at fault") == 1


def test_a_counter_that_is_wrong_is_a_fault_too(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = ExpertStore.take_totals

    def lies(store: ExpertStore) -> object:
        totals = take(store)
        totals.hits += 1
        return totals

    monkeypatch.setattr(ExpertStore, "take_totals", lies)
    out = tmp_path / "run.trace"
    assert "in the counts of 13 of 13 passes (" in run("record", model, *STREAMED, "-o", out).err


@pytest.mark.parametrize(
    "seed", [*range(6), *(pytest.param(s, marks=pytest.mark.slow) for s in range(6, 12))]
)
def test_it_finds_what_the_replay_finds(seed: int, tmp_path: Path) -> None:
    """Two programs that share no code count the same lookups, hits and differences."""
    path = tmp_path / "run.csv"
    lines = session(seed).lines
    rng = np.random.default_rng(seed)
    for number, line in enumerate(lines):
        fields = line.split(",")
        if fields[0].isdigit() and rng.random() < 0.05 * (seed % 3):
            fields[7] = str(1 - int(fields[7]))
            lines[number] = ",".join(fields)
    path.write_text("\n".join(lines) + "\n")
    trace = open_any(path)
    expected, found = verify(trace), compare_with_lru(trace, trace.budget_bytes)
    assert found.n_lookups > 0
    for name in ("n_lookups", "n_mismatched", "hits_recorded", "hits_replayed", "first_mismatch"):
        if name != "first_mismatch" or found.n_mismatched:
            assert getattr(found, name) == getattr(expected, name), name


def test_part_files_removed_while_recording_end_it_incomplete(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run.trace"
    writer = functools.partial(TraceWriter, flush_ms=0, part_bytes=0, threaded=False)
    monkeypatch.setattr(recorder, "TraceWriter", writer)

    def remove(progress: Progress) -> None:
        if progress.decoded == 5:
            for part in out.glob("*-00002.parquet"):
                part.unlink()

    streaming = Options(streaming=Streaming(50_000))
    with pytest.raises(
        TracekitError, match="does not hold all of the 13 passes that were recorded"
    ):
        record(model, "abc", out, options=streaming, generation=Generation(12), on_progress=remove)
    trace = Trace.open(out)
    assert not trace.complete
    assert "2 of the 12 passes found: part 2 is missing" in trace.warnings[0]
