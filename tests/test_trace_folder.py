"""Where a trace is written: what exists there is kept or replaced, and two writers do not collide."""

import fcntl
import multiprocessing
import os
import shutil
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from trace_recorder import N_LAYER, is_recording, raising, record, writer_for

from tracekit.trace import Trace, TracekitError, UsageError, synthesize, write_trace
from tracekit.trace.folder import TraceFolder

LAYERS = [{"layer": n, "expert_bytes": 1000 + n} for n in range(N_LAYER)]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "run.trace"


def test_an_existing_trace_is_refused_and_kept(path):
    write_trace(synthesize(seed=1), path)
    digest = Trace.open(path).digest
    for attempt in (lambda: write_trace(synthesize(seed=2), path), lambda: writer_for(path)):
        with pytest.raises(UsageError) as caught:
            attempt()
        assert str(caught.value) == (
            f"{path} exists; use --force to overwrite it, or another name."
        )
    assert Trace.open(path).digest == digest


def test_with_force_the_old_trace_stays_until_the_new_one_has_a_part(path):
    write_trace(synthesize(seed=1), path)
    old = Trace.open(path).digest
    with writer_for(path, force=True, flush_ms=1e9) as writer:
        writer.write_layers(LAYERS)
        record(writer, 0, 3)
        assert Trace.open(path).digest == old
        writer.flush()
        assert is_recording(Trace.open(path), 3)
    assert is_recording(Trace.open(path), 3)
    assert os.listdir(path.parent) == [path.name]


def test_with_force_a_trace_replaces_itself(path):
    write_trace(synthesize(seed=1), path)
    trace = Trace.open(path)
    write_trace(trace, path, force=True)
    assert Trace.open(path).digest == trace.digest


@pytest.mark.parametrize("force", [False, True])
def test_a_directory_that_is_no_trace_is_never_overwritten(path, force):
    path.mkdir()
    (path / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError):
        write_trace(synthesize(), path, force=force)
    with pytest.raises(UsageError):
        writer_for(path, force=force)
    assert (path / "thesis.tex").read_text() == "years of work"


def test_with_force_a_file_stays(path):
    path.write_text("years of work")
    with pytest.raises(UsageError, match="is a file and no trace; it is not overwritten"):
        write_trace(synthesize(), path, force=True)
    assert path.read_text() == "years of work"


@pytest.mark.parametrize("facts", ['{"mentions": "tracekit.trace/1"}', "tracekit.trace/1", "[1]"])
def test_with_force_a_directory_that_only_mentions_traces_stays(path, facts):
    path.mkdir()
    (path / "trace.json").write_text(facts)
    with pytest.raises(UsageError, match="is a directory but no trace"):
        write_trace(synthesize(), path, force=True)
    assert (path / "trace.json").read_text() == facts


def test_with_force_a_trace_with_a_foreign_file_stays(path):
    write_trace(synthesize(), path)
    (path / "notes.txt").write_text("years of work")
    with pytest.raises(UsageError, match=r"holds notes\.txt, which belongs to no trace"):
        write_trace(synthesize(), path, force=True)
    assert Trace.open(path).complete


@pytest.mark.parametrize(
    "name",
    [
        "layers-1.parquet",
        "layers-00001.parquet",
        "routing-7.parquet",
        "steps-0001.parquet",
        ".notes.tmp",
        ".routing.parquet.tmp.tmp",
        ".trace.json.mine.tmp",
        "trace.json.bak",
        "TRACE.JSON",
    ],
)
def test_with_force_a_foreign_file_stays_whatever_it_is_called(name, path):
    write_trace(synthesize(), path)
    (path / name).write_text("years of work")
    with pytest.raises(UsageError, match="which belongs to no trace"):
        write_trace(synthesize(), path, force=True)
    with pytest.raises(UsageError, match="which belongs to no trace"):
        writer_for(path, force=True)
    assert (path / name).read_text() == "years of work"
    assert Trace.open(path).complete


@pytest.mark.parametrize("name", ["routing-00001.parquet", ".steps.parquet.12.tmp"])
def test_with_force_a_foreign_folder_stays(name, path):
    write_trace(synthesize(), path)
    (path / name).mkdir()
    (path / name / "thesis.tex").write_text("years of work")
    with pytest.raises(UsageError, match="which belongs to no trace"):
        write_trace(synthesize(), path, force=True)
    assert (path / name / "thesis.tex").exists()


def test_what_comes_into_an_old_trace_at_the_last_moment_stays(path, monkeypatch):
    write_trace(synthesize(seed=1), path)
    old = Trace.open(path).digest
    replace = os.replace

    def replace_after_a_note(source, target):
        if source == path:
            (path / "notes.txt").write_text("years of work")
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_after_a_note)
    with pytest.raises(UsageError, match=r"run\.trace holds notes\.txt"):
        write_trace(synthesize(seed=2), path, force=True)
    assert (path / "notes.txt").read_text() == "years of work"
    assert Trace.open(path).digest == old
    assert os.listdir(path.parent) == [path.name]


def test_what_comes_into_a_directory_that_is_removed_stays(path):
    folder = TraceFolder(path, force=False)
    (folder.now / "trace.json").write_text("{}")
    (folder.now / "notes.txt").write_text("years of work")
    folder.remove()
    assert os.listdir(folder.now) == ["notes.txt"]


def test_a_pipe_in_place_of_the_facts_is_not_waited_for(path):
    path.mkdir()
    os.mkfifo(path / "trace.json")
    with pytest.raises(UsageError, match="is a directory but no trace"):
        write_trace(synthesize(), path, force=True)


def test_with_force_a_link_is_replaced_and_its_target_stays(path, tmp_path):
    target = tmp_path / "target.trace"
    write_trace(synthesize(seed=1), target)
    path.symlink_to(target)
    write_trace(synthesize(seed=2), path, force=True)
    assert not path.is_symlink()
    assert Trace.open(target).digest != Trace.open(path).digest


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_with_force_the_working_folder_stays(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="is no name for a trace; give one"):
        write_trace(synthesize(), name, force=True)
    assert os.getcwd() == str(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("published", [False, True])
def test_a_writer_does_not_disturb_another(path, published):
    """The directory of another writer, published or not, is not taken for an old trace."""
    if not published:
        write_trace(synthesize(), path)
    with writer_for(path, force=True, flush_ms=1e9) as writer:
        if published:
            with pytest.raises(UsageError, match="is being written by another command"):
                write_trace(synthesize(), path, force=True)
        else:
            with writer_for(path.with_name("other.trace")) as other:
                record(other, 0, 2)
        record(writer, 0, 3)
    assert is_recording(Trace.open(path), 3)
    write_trace(synthesize(), path, force=True)  # a closed trace is an old one


def test_a_trace_that_another_process_wrote_meanwhile_stays(path, monkeypatch):
    folder = TraceFolder(path, force=False)
    monkeypatch.setattr(os, "getpid", lambda: 999999999)  # another process
    write_trace(synthesize(), path)
    with folder, pytest.raises(UsageError, match="exists; use --force"):
        folder.publish()
    folder.remove()
    assert Trace.open(path).complete
    assert os.listdir(path.parent) == [path.name]


def test_the_trace_of_the_first_of_two_writers_stays(path, monkeypatch):
    write_trace(synthesize(), path)
    late = writer_for(path, force=True, flush_ms=1e9)
    record(late, 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 999999999)  # another process
        first = writer_for(path, force=True, flush_ms=0)
    record(first, 0, 3)
    first.flush()
    with pytest.raises(UsageError, match="is being written by another command"):
        late.close()
    first.close()
    assert is_recording(Trace.open(path), 3)
    assert os.listdir(path.parent) == [path.name]


def test_the_directories_of_killed_writers_are_removed(path):
    tokens = ("999999999", "999999999-0a1b2c3d", "mine", "12-mine")
    by_pid, by_token, *others = (path.with_name(f".{path.name}.{token}.tmp") for token in tokens)
    for folder in (by_pid, by_token, *others):
        folder.mkdir()
        (folder / "trace.json").write_text("{}")
    write_trace(synthesize(), path)
    assert sorted(os.listdir(path.parent)) == sorted([*(p.name for p in others), path.name])


def test_a_trace_that_a_killed_writer_was_replacing_is_put_back(path):
    write_trace(synthesize(), path)
    path.rename(path.with_name(f".{path.name}.999999999.old"))
    with pytest.raises(UsageError, match="exists; use --force"):
        write_trace(synthesize(), path)
    assert Trace.open(path).complete
    shutil.copytree(path, path.with_name(f".{path.name}.999999999.old"))
    write_trace(synthesize(), path, force=True)
    assert os.listdir(path.parent) == [path.name]


def test_a_trace_stays_if_the_new_one_cannot_be_published(path):
    write_trace(synthesize(), path)
    folder = TraceFolder(path, force=True)
    shutil.rmtree(folder.now)
    with folder, pytest.raises(TracekitError, match="its folder is missing"):
        folder.publish()
    assert Trace.open(path).complete
    assert os.listdir(path.parent) == [path.name]


def test_a_read_only_trace_stays(path, monkeypatch):
    write_trace(synthesize(), path)
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write everywhere
    with pytest.raises(UsageError, match="is read-only; it is not overwritten"):
        write_trace(synthesize(), path, force=True)
    assert Trace.open(path).complete
    assert os.listdir(path.parent) == [path.name]


def test_a_directory_that_cannot_be_removed_stops_no_writer(path, monkeypatch):
    write_trace(synthesize(), path)
    left = path.with_name(f".{path.name}.999999999.old")
    shutil.copytree(path, left)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rmdir", raising(PermissionError))
        write_trace(synthesize(seed=9), path, force=True)
    assert Trace.open(path).digest == synthesize(seed=9).digest
    write_trace(synthesize(), path, force=True)
    assert os.listdir(path.parent) == [path.name]


def publish_again_and_again(path: Path, seconds: float) -> int:
    """Return how often it was published while others did the same; only their refusal is ignored."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        with suppress(UsageError), TraceFolder(path, force=True) as folder:
            (folder.now / "trace.json").write_text('{"schema": "tracekit.trace/1"}')
            folder.publish()
            count += 1
    return count


@pytest.mark.slow  # in several processes, for a while
@pytest.mark.parametrize(("writers", "seconds"), [(2, 0.5), (4, 1.0)])
def test_many_writers_of_one_name(path, writers, seconds):
    with ProcessPoolExecutor(writers, multiprocessing.get_context("spawn")) as pool:
        counts = list(pool.map(publish_again_and_again, [path] * writers, [seconds] * writers))
    assert sum(counts) > 4
    assert os.listdir(path.parent) == [path.name]


def test_a_lock_of_another_program_on_the_folder_is_not_waited_for_long(path):
    """As ``flock . tracekit record …`` takes it."""
    held = os.open(path.parent, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with TraceFolder(path, force=False, longest_wait_s=0.1) as folder:
        folder.publish()
    os.close(held)
    assert path.is_dir()
