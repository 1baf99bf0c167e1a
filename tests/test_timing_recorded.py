"""What timing takes from a recording itself: memory, faults, what was copied while it was timed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from timed_runs import timed

from tracekit.advice.advise import _lacking_of_times
from tracekit.figures import MIB
from tracekit.replaying import replay
from tracekit.timing import fit
from tracekit.timing.comparison import compare
from tracekit.trace import Trace
from tracekit.trace.rows import TableRows
from tracekit.trace.schema import LAYERS_FILE, ROUTING_FILE, STEPS_FILE, steps_schema


def recorded(
    folder: Path,
    seed: int = 2,
    left_mib: float | None = None,
    faulting: int | None = None,
    captured: list[str] | None = None,
    ram_mib: float | None = None,
) -> Trace:
    """Return a run at 96 MiB that says what memory was left after it, and so on."""
    trace = timed(folder, seed=seed)
    n = trace.n_steps
    columns: dict[str, np.ndarray] = {}
    if left_mib is not None:
        left = np.linspace(2 * left_mib, left_mib, n)
        columns["mem_available_bytes"] = np.rint(left * MIB).astype(np.int64)
    if faulting is not None:
        columns["major_faults"] = (np.arange(n) < faulting).astype(np.int64) * 3
    table = trace.table(STEPS_FILE)
    for name, values in columns.items():
        field = steps_schema().field(name)
        at = table.schema.get_field_index(name)
        table = table.set_column(at, field, pa.array(values, field.type))
    notes = trace.facts.notes | ({} if ram_mib is None else {"ram_mib": ram_mib})
    return Trace(
        replace(trace.facts, notes=notes, captured=captured),
        TableRows(trace.table(LAYERS_FILE)),
        TableRows(trace.table(ROUTING_FILE)),
        TableRows(table),
        name=trace.name,
    )


def test_the_memory_floor_is_that_of_the_recording(tmp_path: Path) -> None:
    run = recorded(tmp_path, left_mib=200, ram_mib=1000)
    assert fit(run).facts.mem_floor_mib == pytest.approx(200)
    assert fit(run, mem_floor_mib=300).facts.mem_floor_mib == 300  # what is given goes first
    rows = replay(run, "lru", cache_mib=[128, 160], time=True)
    fits, too_large = (row.time for row in rows.rows)
    assert fits.typical_ms is not None  # 168 MiB would be left of 1000
    assert too_large.typical_ms is None  # 136
    assert any("Free memory would fall to 136 MiB" in each for each in too_large.refusals)
    assert not any("--mem-floor-mib" in note for note in rows.notes)
    older = replay(timed(tmp_path), "lru", cache_mib=[128], time=True)
    assert any("--ram-mib and --mem-floor-mib" in note for note in older.notes)


def test_pages_that_had_to_be_read_back_are_noted(tmp_path: Path) -> None:
    n = len(fit(timed(tmp_path)).times.wall_ms)
    many, few = (fit(recorded(tmp_path, faulting=count)) for count in (n // 4, n // 50))
    assert any(note.startswith("In 25 % of the tokens of run") for note in many.notes)
    assert not any("major faults" in note for note in few.notes)


def test_what_was_copied_is_noted(tmp_path: Path) -> None:
    run = fit(recorded(tmp_path, captured=["logits", "gate_input"]))
    assert "Logits and gate inputs were copied out of the model" in " ".join(run.notes)
    assert any("--no-logits --no-gate-inputs" in each for each in _lacking_of_times(run))
    for captured in ([], None):
        assert not any(
            "copied" in note for note in fit(recorded(tmp_path, captured=captured)).notes
        )


def test_advice_does_not_ask_for_what_is_there(tmp_path: Path) -> None:
    assert any(
        "how much memory was free" in each for each in _lacking_of_times(fit(timed(tmp_path)))
    )
    assert not _lacking_of_times(fit(recorded(tmp_path, left_mib=500, captured=[])))


@pytest.mark.slow
def test_runs_that_copied_other_things_are_told(tmp_path: Path) -> None:
    runs = [
        recorded(tmp_path, seed, left_mib=300 + seed, captured=captured)
        for seed, captured in ((2, ["logits"]), (3, []))
    ]
    runs[1].name = "other"
    found = compare(runs)
    assert (
        "Logits were copied in run alone; what that took is part of the difference." in found.notes
    )
    assert [round(run.mem_floor_mib) for run in found.runs] == [302, 303]
    assert "least memory" in found.to_text()
    alike = compare([recorded(tmp_path, seed, captured=["logits"]) for seed in (2, 3)])
    assert not any("copied" in note for note in alike.notes)
    assert "least memory" not in alike.to_text()
