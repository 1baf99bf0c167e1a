"""Writing traces: flushed passes survive, a failure is one sentence, nothing is half-written."""

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import trace_recorder as recorder
from families import slow_unless
from trace_recorder import is_recording, raising, record, writer_for

from tracekit.trace import Trace, TraceError, TracekitError, TraceWriter, synthesize, write_trace
from tracekit.trace.schema import LAYERS_FILE, ROUTING_FILE, STEPS_FILE

LAYERS = [{"layer": n, "expert_bytes": 1000 + n} for n in range(recorder.N_LAYER)]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.trace"


# ---- a recording --------------------------------------------------------------------------------


@pytest.mark.parametrize("threaded", [True, False])
def test_a_recording_from_start_to_end(path, threaded):
    with writer_for(path, threaded=threaded, flush_ms=5) as writer:
        writer.write_layers(LAYERS)
        record(writer, 0, 20)
        writer.facts = replace(writer.facts, prompts=["Once"])
        writer.close(ended="length")
    trace = Trace.open(path)
    assert is_recording(trace, 20)
    assert trace.complete
    assert trace.warnings == []
    assert trace.facts.ended == "length"
    assert trace.facts.prompts == ["Once"]
    assert trace.expert_bytes.tolist() == [1000, 1001, 1002]
    steps = trace.steps(["token", "piece", "wall_ms"])
    assert steps["token"].tolist() == list(range(24))
    assert steps["piece"][7] == b"7"
    assert np.isnan(steps["wall_ms"]).all()
    assert sorted(os.listdir(path)) == sorted([LAYERS_FILE, ROUTING_FILE, STEPS_FILE, "trace.json"])


def test_what_is_flushed_is_readable_while_the_recording_runs(path):
    with writer_for(path, flush_ms=1e9) as writer:
        assert Trace.open(path).warnings == [
            f"{path} is incomplete: the recording was cut short, before its first token."
        ]
        writer.write_layers(LAYERS)
        record(writer, 0, 10)
        writer.flush()
        record(writer, 10, 12)
        trace = Trace.open(path)
        assert is_recording(trace, 10)
        assert not trace.complete
        assert trace.warnings == [
            f"{path} is incomplete: the recording was cut short, its first 14 tokens are kept."
        ]
        assert trace.expert_bytes.tolist() == [1000, 1001, 1002]
    assert is_recording(Trace.open(path), 12)


def test_a_pass_is_written_once_the_last_part_is_old_enough(path):
    with writer_for(path, flush_ms=20, threaded=False) as writer:
        record(writer, 0, 3)
        assert Trace.open(path).n_rows == 0
        time.sleep(0.03)
        record(writer, 3, 4)
        assert is_recording(Trace.open(path), 4)


def test_a_full_part_is_closed_and_a_small_one_grows(path):
    with writer_for(path, flush_ms=0, threaded=False, part_bytes=2000) as writer:
        record(writer, 0, 20)
        found = sorted(p.name for p in path.glob("routing-*.parquet"))
        assert 2 < len(found) < 15
        assert found[0] == "routing-00000.parquet"
        assert is_recording(Trace.open(path), 20)
    assert is_recording(Trace.open(path), 20)


def test_passes_that_take_too_much_memory_are_written_at_once(path):
    with writer_for(path, flush_ms=1e9, threaded=False, gathered_bytes=4000) as writer:
        record(writer, 0, 40)
        assert Trace.open(path).n_steps > 20


def test_columns_come_null_single_or_as_arrays(path):
    routing, steps = recorder.a_pass(0)
    n = len(routing["step"])
    routing["turn"] = np.zeros(n, np.int64)
    routing["weights"] = np.array([[0.5, np.nan]] * n)
    routing["residency"] = np.array([[0, 255]] * n)
    routing["gate_input"] = None
    later, later_steps = recorder.a_pass(1)
    del later["weights"]
    with writer_for(path, gate_dtype="f16") as writer:
        writer.write_pass(routing, steps)
        writer.write_pass(later, later_steps | {"wall_ms": [1.5], "hits": [-1], "piece": [None]})
    trace = Trace.open(path)
    rows = trace.routing(["weights", "residency", "gate_input"])
    np.testing.assert_array_equal(rows["weights"][:n], routing["weights"].astype(np.float32))
    assert np.isnan(rows["weights"][n:]).all()
    assert (rows["residency"][:n] == [0, 255]).all()
    assert (rows["residency"][n:] == 255).all()
    assert np.isnan(rows["gate_input"][:n]).all()
    assert (rows["gate_input"][n:] == 1).all()
    steps = trace.steps(["wall_ms", "hits", "piece"])
    assert steps["wall_ms"][-1] == 1.5
    assert steps["hits"][-1] == -1
    assert steps["piece"].tolist() == [b"0", b"1", b"2", b"3", b"4", None]


def test_the_encoding(path):
    with writer_for(path, n_expert=recorder.N_EXPERT) as writer:
        writer.write_layers(LAYERS)
        record(writer, 0, 5)
    file = pq.ParquetFile(path / ROUTING_FILE)
    group = file.metadata.row_group(0)
    columns = [group.column(c) for c in range(group.num_columns)]
    assert {c.compression for c in columns} == {"ZSTD"}
    split = {c.path_in_schema for c in columns if "BYTE_STREAM_SPLIT" in c.encodings}
    assert split == {"weights.list.element", "gate_input.list.element"}
    # No logits were given: the finished trace does not carry an empty column of them.
    assert "logits" not in file.schema_arrow.names


# ---- a recording that was killed ----------------------------------------------------------------


# The fourth replaces a trace.
@pytest.mark.parametrize("seed", slow_unless(range(8), 1, 3))
def test_a_recording_killed_at_any_moment_keeps_every_flushed_pass(tmp_path, seed):
    rng = random.Random(seed)
    path = tmp_path / "run.trace"
    replaces = seed % 4 == 3
    if replaces:
        write_trace(synthesize(), path)
    arguments = [str(path), "400", rng.choice(("0", "2", "1e9")), *["--force"] * replaces]
    process = subprocess.Popen(
        [sys.executable, recorder.__file__, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(recorder.__file__).parents[1],
    )
    head = [process.stdout.readline() for _ in range(rng.choice((0, 1, 3, 10)))]
    time.sleep(rng.random() * 0.05)
    process.send_signal(signal.SIGKILL)
    printed = "".join(head) + process.stdout.read()
    process.wait()
    process.stdout.close()
    flushed = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("flushed")]
    assert "closed" not in printed
    if not flushed and not path.exists():
        return
    trace = Trace.open(path)
    if trace.facts.source == "synthetic":
        assert replaces
        assert not flushed
        return
    n_passes = len(np.unique(trace.routing(["pass"])["pass"]))
    assert n_passes > max(flushed, default=-1)
    assert n_passes == 0 or is_recording(trace, n_passes)
    assert not trace.complete
    assert len(trace.warnings) == 1


def killed_recording(path: Path, *flushes: int) -> None:
    """Leave a trace as a recorder leaves it that is killed after these flushes, each a part."""
    writer = writer_for(path, flush_ms=1e9, threaded=False, part_bytes=0)
    writer.write_layers(LAYERS)
    for first, last in zip((0, *flushes), flushes, strict=False):
        record(writer, first, last)
        writer.flush()


def test_rows_count_up_to_the_last_pass_that_both_files_have(path):
    killed_recording(path, 5, 9, 12)
    (path / "steps-00002.parquet").unlink()
    assert is_recording(Trace.open(path), 9)
    (path / "routing-00002.parquet").unlink()
    (path / "routing-00001.parquet").unlink()
    assert is_recording(Trace.open(path), 5)


def test_files_that_a_killed_process_was_writing_do_not_count(path):
    killed_recording(path, 5)
    (path / ".routing-00000.parquet.tmp").write_bytes(b"half")
    # It was joining the parts into one file: the parts count until trace.json says complete.
    (path / ROUTING_FILE).write_bytes(b"half")
    assert is_recording(Trace.open(path), 5)


def test_parts_left_beside_a_complete_trace_do_not_count(path, tmp_path):
    killed_recording(path, 5)
    done = tmp_path / "done.trace"
    with writer_for(done) as writer:
        writer.write_layers(LAYERS)
        record(writer, 0, 7)
    for part in path.glob("*-00000.parquet"):
        shutil.copy(part, done)
    assert is_recording(Trace.open(done), 7)


def test_an_incomplete_trace_is_written_and_read_again(path, tmp_path):
    killed_recording(path, 5)
    trace = Trace.open(path)
    write_trace(trace, tmp_path / "copy.trace")
    again = Trace.open(tmp_path / "copy.trace")
    assert again.digest == trace.digest
    assert not again.complete


def test_an_incomplete_trace_without_a_pass_is_empty(path):
    writer_for(path, threaded=False)
    trace = Trace.open(path)
    assert trace.n_rows == trace.n_steps == trace.n_turns == 0
    assert len(trace.moe_layers) == len(trace.expert_bytes) == 0
    assert not trace.has("gate_input")
    assert trace.routing(["experts"])["experts"].shape == (0, recorder.TOP_K)
    assert list(trace.iter_routing(["experts"])) == []


# ---- what goes wrong ----------------------------------------------------------------------------


def wrong_pass(number: int) -> tuple[dict, dict]:
    routing, steps = recorder.a_pass(number)
    return routing | {"experts": np.zeros_like(routing["experts"])}, steps


def test_the_next_call_raises_the_error_of_the_thread_and_flushed_passes_are_kept(path):
    writer = writer_for(path, flush_ms=1e9)
    writer.write_layers(LAYERS)
    record(writer, 0, 5)
    writer.flush()
    writer.write_pass(*wrong_pass(5))
    with pytest.raises(TraceError, match="expert 0 stands twice in one routing"):
        writer.flush()
    with pytest.raises(TraceError, match="expert 0 stands twice in one routing"):
        writer.write_pass(*recorder.a_pass(6))
    with pytest.raises(TraceError, match="expert 0 stands twice in one routing"):
        writer.close()
    assert is_recording(Trace.open(path), 5)
    assert not Trace.open(path).complete


def test_an_exception_keeps_what_was_written(path):
    def interrupted():
        with writer_for(path, flush_ms=1e9) as writer:
            record(writer, 0, 6)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert is_recording(Trace.open(path), 6)
    assert not Trace.open(path).complete


@pytest.mark.parametrize("replaces", [False, True])
def test_an_exception_before_the_first_token_leaves_nothing(path, replaces):
    if replaces:
        write_trace(synthesize(), path)
    before = sorted(os.listdir(path.parent))

    def interrupted():
        with writer_for(path, force=replaces) as writer:
            writer.write_layers(LAYERS)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sorted(os.listdir(path.parent)) == before


@pytest.mark.parametrize(
    "change",
    [
        {"experts": np.zeros((3, 5))},
        {"nonsense": np.zeros(3)},
        {"step": None},
        {"pass": 7},
    ],
    ids=["shape", "unknown", "missing", "pass"],
)
def test_a_pass_of_the_wrong_form_is_a_programming_error(path, change):
    writer = writer_for(path, flush_ms=1e9, threaded=False)
    record(writer, 0, 1)
    writer.flush()
    routing, steps = recorder.a_pass(1)
    writer.write_pass(routing | change, steps | {k: v for k, v in change.items() if k == "pass"})
    with pytest.raises((ValueError, TypeError)):
        writer.flush()


def test_a_closed_writer_takes_nothing_more(path):
    with writer_for(path) as writer:
        record(writer, 0, 2)
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.write_pass(*recorder.a_pass(2))


def test_a_width_other_than_the_facts_say(path):
    with pytest.raises(ValueError, match="top_k = 3, but the facts say 2"):
        TraceWriter(path, recorder.FACTS, top_k=3)
    assert not path.exists()


LIMITED = """
import resource, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import numpy as np
import trace_recorder as recorder
from trace_recorder import is_recording, raising, record, writer_for
from tracekit.trace import Trace, TracekitError, TraceWriter, synthesize, write_trace
path, mode = Path({path!r}), {mode!r}
trace = synthesize(4, 32, 4, 400, gate_inputs=True)
noise = np.random.default_rng(0)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    if mode == "whole":
        write_trace(trace, path)
    else:
        with TraceWriter(path, recorder.FACTS, top_k=2, n_embd=16, flush_ms=1e9) as writer:
            for number in range(10_000):
                routing, steps = recorder.a_pass(number)
                steps["piece"] = [noise.bytes(500) for _ in steps["step"]]
                writer.write_pass(routing, steps)
                if number % 10 == 0:
                    writer.flush()
except TracekitError as error:
    print(error)
"""


@pytest.mark.parametrize("mode", slow_unless(["whole", "recording"], "recording"))
def test_a_full_disk_is_one_sentence(path, mode):
    """A file size limit fails a write as a full disk does, and any user may set one."""
    tests = str(Path(__file__).parent)
    code = LIMITED.format(tests=tests, path=str(path), mode=mode)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(tests).parent
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Cannot write ")
    assert done.stdout.endswith("larger than is allowed here; use another folder.\n")
    if mode == "whole":
        assert os.listdir(path.parent) == []
    else:
        trace = Trace.open(path)
        assert trace.n_steps > 20
        assert is_recording(trace, trace.n_steps - recorder.PROMPT + 1)
        assert [p.name for p in path.iterdir() if p.name.endswith(".tmp")] == []


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "the disk is full; free some space."),
        (errno.EROFS, "the file system is read-only; choose another folder."),
        (errno.EACCES, "permission denied; choose a folder you may write to."),
    ],
)
@pytest.mark.parametrize("write", ["whole", "recording"])
def test_an_error_of_the_system_is_one_sentence(path, monkeypatch, number, remedy, write):
    trace = synthesize()
    monkeypatch.setattr(os, "replace", raising(OSError(number, os.strerror(number))))
    with pytest.raises(TracekitError) as caught:
        write_trace(trace, path) if write == "whole" else writer_for(path)
    assert str(caught.value).startswith("Cannot write ")
    assert str(caught.value).endswith(f": {remedy}")
    assert caught.value.exit_code == 1
    assert os.listdir(path.parent) == []


def test_no_folder_to_write_to(tmp_path):
    trace = synthesize()
    (tmp_path / "file").touch()
    for path, remedy in (
        (tmp_path / "none" / "x.trace", "its folder is missing; make it first."),
        (tmp_path / "file" / "x.trace", "what should be its folder is a file; choose another"),
    ):
        with pytest.raises(TracekitError) as caught:
            write_trace(trace, path)
        assert str(caught.value).startswith(f"Cannot write {path}: {remedy}")


def test_a_recording_whose_first_part_cannot_be_written_leaves_nothing(path, monkeypatch):
    writer = writer_for(path)
    record(writer, 0, 1)
    monkeypatch.setattr(os, "replace", raising(OSError(errno.ENOSPC, "no space")))
    with pytest.raises(TracekitError, match="the disk is full"):
        writer.close()
    assert os.listdir(path.parent) == []


def test_a_start_that_is_interrupted_leaves_nothing(path):
    class Interrupting:
        def __deepcopy__(self, memo):
            raise KeyboardInterrupt

    facts = replace(recorder.FACTS, notes={"copied as trace.json is written": Interrupting()})
    with pytest.raises(KeyboardInterrupt):
        TraceWriter(path, facts, top_k=recorder.TOP_K)
    assert os.listdir(path.parent) == []


def test_a_name_that_is_not_valid_text(tmp_path):
    path = tmp_path / os.fsdecode(b"r\xffn.trace")
    with writer_for(path) as writer:
        record(writer, 0, 3)
    assert is_recording(Trace.open(path), 3)
    again = tmp_path / os.fsdecode(b"c\xffpy.trace")
    write_trace(Trace.open(path), again)
    assert is_recording(Trace.open(again), 3)
