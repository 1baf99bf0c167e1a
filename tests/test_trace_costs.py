"""What passes cost beside times and bytes: written, checked, kept in copies, absent from older traces."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_helpers import run
from trace_recorder import FACTS, N_LAYER, a_pass, writer_for

from tracekit import meter
from tracekit.datasets import resolve
from tracekit.trace import Trace, TraceError, TraceWriter
from tracekit.trace.schema import FACTS_FILE, SINCE_VERSION_3, STEPS_FILE
from tracekit.trace.writer import write_trace

GIB = 2**30
N_PASSES = 6


def costs(number: int, **changed: float) -> dict[str, np.ndarray]:
    """Return what pass `number` costs, on its last row."""
    count = len(a_pass(number)[1]["step"])
    values = {
        "wall_ms": 20.0,
        "start_s": 0.5 * number,
        "cpu_ms": 35.0 + number,
        "evict_ms": 1.5,
        "major_faults": number,
        "mem_available_bytes": (8 - number) * GIB,
    } | changed
    return {
        name: np.array([-1 if isinstance(value, int) else np.nan] * (count - 1) + [value])
        for name, value in values.items()
    }


def written(path: Path, n_passes: int = N_PASSES, **changed: float) -> Trace:
    """Write a trace; `changed` is of its fourth pass."""
    with TraceWriter(path, FACTS, top_k=2, n_embd=16, threaded=False) as writer:
        writer.write_layers([{"layer": n, "expert_bytes": 1000} for n in range(N_LAYER)])
        for number in range(n_passes):
            routing, steps = a_pass(number)
            writer.write_pass(routing, steps | costs(number, **(changed if number == 3 else {})))
    return Trace.open(path)


def rewritten(path: Path, column: str, value: float) -> None:
    """Put a value into the last row but one of a column of the steps."""
    table = pq.read_table(path / STEPS_FILE)
    values = table[column].to_pylist()
    values[-2] = value
    at = table.schema.get_field_index(column)
    field = table.schema.field(column)
    pq.write_table(
        table.set_column(at, field, [pa.array(values, field.type)]),
        path / STEPS_FILE,
    )


def test_they_stand_on_the_last_row_of_a_pass(tmp_path: Path) -> None:
    trace = written(tmp_path / "x.trace")
    steps = trace.steps(["pass", *SINCE_VERSION_3])
    last = np.flatnonzero(np.diff(np.append(steps["pass"], N_PASSES)))
    assert steps["start_s"][last].tolist() == [0.5 * n for n in range(N_PASSES)]
    assert steps["major_faults"][last].tolist() == list(range(N_PASSES))
    assert steps["mem_available_bytes"][last].tolist() == [(8 - n) * GIB for n in range(N_PASSES)]
    others = np.setdiff1d(np.arange(len(steps["pass"])), last)
    assert len(others)
    assert np.isnan(steps["cpu_ms"][others]).all()
    assert (steps["major_faults"][others] == -1).all()


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"start_s": 0.9}, "column start_s: 0.9 follows 1, but a pass begins after"),
        ({"evict_ms": 20.5}, r"column evict_ms: 20.5 is more than the 20 of the whole pass"),
        ({"cpu_ms": -1.0}, "column cpu_ms: -1.0 is no amount"),
        ({"cpu_ms": np.inf}, "column cpu_ms: inf is no amount"),
        ({"major_faults": -2}, "column major_faults: -2 is no amount"),
        ({"mem_available_bytes": -5}, "column mem_available_bytes: -5 is no amount"),
    ],
)
def test_what_cannot_be(tmp_path: Path, changed: dict[str, float], fault: str) -> None:
    with pytest.raises(TraceError, match=rf"steps-00000.parquet, row 7, {fault}"):
        written(tmp_path / "x.trace", **changed)
    written(tmp_path / "y.trace", 5)
    ((column, value),) = changed.items()
    rewritten(tmp_path / "y.trace", column, value)
    with pytest.raises(TraceError, match=rf"steps.parquet, row 7, {fault}"):
        Trace.open(tmp_path / "y.trace")


def test_a_start_before_that_of_the_part_before(tmp_path: Path) -> None:
    writer = writer_for(tmp_path / "x.trace", threaded=False)
    for number in range(3):
        routing, steps = a_pass(number)
        writer.write_pass(routing, steps | costs(number))
    writer.flush()
    routing, steps = a_pass(3)
    writer.write_pass(routing, steps | costs(3, start_s=0.25))
    with pytest.raises(TraceError, match=r"column start_s: 0\.25 follows 1,"):
        writer.flush()


def test_a_recording_that_was_cut_keeps_them(tmp_path: Path) -> None:
    writer = writer_for(tmp_path / "x.trace", threaded=False)
    for number in range(4):
        routing, steps = a_pass(number)
        writer.write_pass(routing, steps | costs(number))
        writer.flush()
    trace = Trace.open(tmp_path / "x.trace")
    assert not trace.complete
    assert trace.steps(["start_s"])["start_s"][-1] == 1.5


def test_a_copy_keeps_them(tmp_path: Path) -> None:
    trace = written(tmp_path / "x.trace")
    write_trace(trace, tmp_path / "copy.trace")
    again = Trace.open(tmp_path / "copy.trace")
    for name in SINCE_VERSION_3:
        np.testing.assert_array_equal(again.steps([name])[name], trace.steps([name])[name])


@pytest.mark.slow
def test_a_trace_of_version_2_lacks_them(tmp_path: Path) -> None:
    path = resolve("bundled:tiny-moe-64e.trace")
    assert json.loads((path / FACTS_FILE).read_text())["schema"] == "tracekit.trace/2"
    trace = Trace.open(path)
    steps = trace.steps(["step", *SINCE_VERSION_3])
    for name in SINCE_VERSION_3:
        assert not trace.has_steps(name)
        values = steps[name]
        assert len(values) == len(steps["step"])
        assert (np.isnan(values) if values.dtype.kind == "f" else values == -1).all()
    assert trace.facts.captured is None
    write_trace(trace, tmp_path / "copy.trace")
    copy = Trace.open(tmp_path / "copy.trace").rows(STEPS_FILE).schema
    assert sorted(copy.names) == sorted(trace.rows(STEPS_FILE).schema.names)


def test_what_was_captured_is_one_of_three(tmp_path: Path) -> None:
    written(tmp_path / "x.trace")
    path = tmp_path / "x.trace" / FACTS_FILE
    facts = json.loads(path.read_text())
    path.write_text(json.dumps({**facts, "captured": ["logits", "gate_input"]}))
    assert Trace.open(tmp_path / "x.trace").facts.captured == ["logits", "gate_input"]
    path.write_text(json.dumps({**facts, "captured": ["sound"]}))
    with pytest.raises(
        TraceError, match="captured 'sound' is none of logits, gate_input, embedding"
    ):
        Trace.open(tmp_path / "x.trace")


def test_info_says_so_in_a_line(tmp_path: Path) -> None:
    written(tmp_path / "x.trace")
    done = run("info", tmp_path / "x.trace")
    line = next(line for line in done.out.splitlines() if line.startswith("run "))
    assert "2.52 s" in line
    assert "38 ms of CPU time" in line
    assert "at least 3,072 MiB of memory left" in line
    assert "15 major faults" in line
    document = json.loads(run("info", tmp_path / "x.trace", "--format", "json").out)
    assert document["mem_available_bytes_min"] == 3 * GIB
    assert document["major_faults"] == 15
    with writer_for(tmp_path / "older.trace", threaded=False) as writer:
        writer.write_pass(*a_pass(0))
    older = run("info", tmp_path / "older.trace").out.splitlines()
    assert not any(line.startswith("run ") for line in older)


def test_the_system_that_says_nothing_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert meter.available_bytes() is None or 0 < meter.available_bytes() <= meter.total_bytes()
    file = tmp_path / "meminfo"
    for text in (
        "",
        "MemTotal: 12 kB\nMemFree: 9 kB\n",
        "MemAvailable: many kB\n",
        "MemAvailable:",
    ):
        file.write_text(text)
        monkeypatch.setattr(meter, "MEMORY_FILE", str(file))
        assert meter.available_bytes() is None
    file.write_text("MemTotal:       7000 kB\nMemFree:   10 kB\nMemAvailable:    5000 kB\n")
    assert (meter.total_bytes(), meter.available_bytes()) == (7000 * 1024, 5000 * 1024)
    monkeypatch.setattr(meter, "MEMORY_FILE", str(tmp_path))
    assert meter.available_bytes() is None


def test_what_the_process_uses() -> None:
    before = meter.used()
    total = sum(i * i for i in range(200_000))
    spent = meter.used() - before
    assert total
    assert spent.cpu_ms > 0
    assert spent.major_faults >= 0
