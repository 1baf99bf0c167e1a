"""Part files that go missing, are damaged, copied or foreign: while recording and afterwards."""

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_helpers import run
from trace_recorder import N_LAYER, is_recording, record, writer_for

from tracekit.trace import Trace, TraceError, TracekitError
from tracekit.trace.schema import LAYERS_FILE, ROUTING_FILE, STEPS_FILE

LAYERS = [{"layer": n, "expert_bytes": 1000 + n} for n in range(N_LAYER)]
FLUSHES = (5, 9, 12)  # passes after each flush; the first pass has five tokens, the others one


@pytest.fixture
def path(tmp_path) -> Path:
    """A recording that was killed after three flushes, each a part."""
    path = tmp_path / "run.trace"
    record_parts(path)
    return path


def record_parts(path: Path, first: int = 0, last: int = len(FLUSHES)):
    """Record passes in parts of their own, and leave the writer open."""
    writer = writer_for(path, flush_ms=1e9, threaded=False, part_bytes=0)
    writer.write_layers(LAYERS)
    for start, stop in list(zip((0, *FLUSHES), FLUSHES, strict=False))[first:last]:
        record(writer, start, stop)
        writer.flush()
    return writer


def names(path: Path, *numbers: int) -> list[Path]:
    return [path / f"{file}-{n:05d}.parquet" for n in numbers for file in ("routing", "steps")]


def remove(path: Path, *numbers: int) -> None:
    for part in names(path, *numbers):
        part.unlink()


def opened(path: Path) -> tuple[int, str]:
    """Return how many passes of the recording a trace has, and its only warning."""
    trace = Trace.open(path)
    steps = trace.steps(["pass"])["pass"]
    n_passes = len(set(steps.tolist()))
    assert n_passes == 0 or is_recording(trace, n_passes)
    assert not trace.complete
    (warning,) = trace.warnings
    prefix = f"{path} is incomplete: the recording was cut short, "
    assert warning.startswith(prefix)
    return n_passes, warning.removeprefix(prefix)


# ---- incomplete traces --------------------------------------------------------------------------


def test_whole_parts_are_kept_without_more_words(path):
    assert opened(path) == (12, "its first 16 tokens are kept.")


def test_parts_lost_in_the_middle(path):
    remove(path, 1)
    assert opened(path) == (
        5,
        "9 tokens are kept, 5 of the 8 passes found: part 1 is missing, steps-00002.parquet does "
        "not continue the part before it.",
    )


@pytest.mark.parametrize("file", ["routing", "steps"])
def test_one_file_of_a_part_lost(path, file):
    (path / f"{file}-00001.parquet").unlink()
    assert opened(path) == (
        5,
        f"9 tokens are kept, 5 of the 12 passes found: {file}-00001.parquet is missing, "
        "steps-00002.parquet does not continue the part before it.",
    )


def test_a_copied_part_hides_nothing(path):
    for file in ("routing", "steps"):
        shutil.copy(path / f"{file}-00000.parquet", path / f"{file}-00003.parquet")
    assert opened(path) == (
        12,
        "16 tokens are kept, 12 of the 12 passes found: steps-00003.parquet does not continue the "
        "part before it.",
    )


@pytest.mark.parametrize("file", ["routing", "steps"])
def test_a_part_that_was_overwritten_with_another(path, file):
    shutil.copy(path / f"{file}-00000.parquet", path / f"{file}-00002.parquet")
    assert opened(path) == (
        9,
        f"13 tokens are kept, 9 of the 12 passes found: {file}-00002.parquet does not continue the "
        "part before it.",
    )


@pytest.mark.parametrize("file", ["routing", "steps"])
def test_two_bytes_lost_in_the_last_part_hide_nothing(path, file):
    """Its footer is whole, and stands two bytes earlier than it says."""
    part = path / f"{file}-00002.parquet"
    data = part.read_bytes()
    named = (
        9,
        f"13 tokens are kept, 9 of the 12 passes found: {part.name} is damaged.",
    )
    outcomes = []
    for at in [4, *range(100, len(data), 300)]:
        part.write_bytes(data[:at] + data[at + 2 :])
        try:
            outcomes.append(opened(path))
        except TraceError as error:
            outcomes.append("refused" if str(part) in str(error) else str(error))
    assert outcomes[0] == named
    # A part of which nothing was lost that is read on open is whole.
    assert set(outcomes) <= {named, "refused", (12, "its first 16 tokens are kept.")}


def test_two_bytes_lost_of_a_complete_trace(tmp_path):
    path = tmp_path / "run.trace"
    with record_parts(path):
        pass
    for file in (ROUTING_FILE, STEPS_FILE):
        data = (path / file).read_bytes()
        (path / file).write_bytes(data[:4] + data[6:])
        with pytest.raises(TraceError, match=f"{file} is (damaged|cut short)"):
            Trace.open(path)
        (path / file).write_bytes(data)


def test_the_first_part_lost(path):
    remove(path, 0)
    trace = Trace.open(path)
    incomplete, lacks = trace.warnings
    assert incomplete.endswith("7 tokens are kept, 7 of the 7 passes found: part 0 is missing.")
    assert lacks == (
        f"{path} lacks rows, and figures are of what is left: passes 0 to 4 are missing, turn 0 "
        "begins at step 9, not at 0; copy or record it again."
    )


def test_all_parts_lost(path):
    remove(path, 0, 1, 2)
    assert opened(path) == (0, "before its first token.")


def test_a_part_of_another_recording_with_other_columns(path):
    part = path / "routing-00002.parquet"
    pq.write_table(pq.read_table(part).drop(["gate_input"]), part)
    assert opened(path)[1].startswith("13 tokens are kept, 9 of the 12 passes found: routing-00002")


def test_many_faults_are_counted(path):
    """One sentence names two of them."""
    for number in range(10, 20):
        shutil.copy(path / "steps-00000.parquet", path / f"steps-{number:05d}.parquet")
    passes, warning = opened(path)
    assert passes == 12
    assert warning == (
        "16 tokens are kept, 12 of the 12 passes found: parts 3 to 9 are missing, "
        "routing-00010.parquet is missing, 9 more parts are left out."
    )


def test_the_number_of_a_part_allocates_nothing(path):
    shutil.copy(path / "steps-00000.parquet", path / f"steps-{10**17}.parquet")
    assert "parts 3 to 99999999999999999 are missing" in opened(path)[1]


def test_every_command_says_how_much_is_kept(path):
    remove(path, 1)
    done = run("info", path)
    assert (done.code, done.err.count("5 of the 8 passes found")) == (0, 1)
    warnings = json.loads(run("info", path, "--format", "json").out)["warnings"]
    assert "5 of the 8 passes found" in warnings[0]


# ---- while it is recorded -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (["routing-00000"], "routing-00000.parquet is"),
        (["steps-00001"], "steps-00001.parquet is"),
        (["routing-00001", "routing-00002", "steps-00001"], "routing-00001.parquet and 1 more are"),
    ],
)
def test_parts_removed_while_recording_end_it_incomplete(tmp_path, lost, named):
    path = tmp_path / "run.trace"
    writer = record_parts(path)
    for name in lost:
        (path / f"{name}.parquet").unlink()
    left = sorted(os.listdir(path))
    with pytest.raises(TracekitError) as caught:
        writer.close()
    assert caught.value.exit_code == 1
    assert str(caught.value) == (
        f"{path} does not hold all of the 12 passes that were recorded: {named} missing or "
        "changed. What is left is kept, marked incomplete; record it again."
    )
    assert sorted(os.listdir(path)) == left
    assert not Trace.open(path).complete


def test_a_part_replaced_while_recording_ends_it_incomplete(tmp_path):
    path = tmp_path / "run.trace"
    writer = record_parts(path)
    shutil.copy(path / "routing-00000.parquet", path / "routing-00001.parquet")
    with pytest.raises(TracekitError, match=r"routing-00001\.parquet is missing or changed"):
        writer.close()


def test_the_part_that_still_grows_is_written_again(tmp_path):
    path = tmp_path / "run.trace"
    writer = writer_for(path, flush_ms=1e9, threaded=False)
    writer.write_layers(LAYERS)
    record(writer, 0, 5)
    writer.flush()
    remove(path, 0)
    record(writer, 5, 7)
    writer.close()
    assert is_recording(Trace.open(path), 7)
    assert Trace.open(path).complete


def test_the_layers_removed_while_recording_end_it_incomplete(tmp_path):
    path = tmp_path / "run.trace"
    writer = record_parts(path)
    (path / LAYERS_FILE).unlink()
    with pytest.raises(TracekitError, match=r"layers\.parquet is missing or changed since it was"):
        writer.close()
    assert opened(path) == (12, "its first 16 tokens are kept.")


def test_a_foreign_part_beside_those_of_a_recording_is_no_part_of_it(tmp_path):
    path = tmp_path / "run.trace"
    writer = record_parts(path)
    shutil.copy(path / "routing-00000.parquet", path / "routing-00007.parquet")
    writer.close()
    assert is_recording(Trace.open(path), 12)
    assert Trace.open(path).complete


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int8()), pa.string(), pa.int64(), pa.list_(pa.int8(), 2)]
)
def test_a_part_whose_passes_are_of_another_type_is_left_out(path, kind):
    part = names(path, 2)[0]
    table = pq.read_table(part)
    column = table.schema.get_field_index("pass")
    pq.write_table(table.set_column(column, "pass", pa.nulls(len(table), kind)), part)
    assert f"{part.name} is damaged" in opened(path)[1]
