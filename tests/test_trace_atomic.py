"""A file is written under a name that nobody foresees, and never through what stands at a name."""

import os
import secrets
from pathlib import Path

import pytest
from cli_helpers import run, write_csv
from trace_recorder import a_pass, writer_for

from tracekit.trace import Trace, TracekitError, synthesize, write_trace
from tracekit.trace.atomic import whole_file, work_name

TOKEN = "0a1b2c3d"


@pytest.fixture
def victim(tmp_path) -> Path:
    """A file that must stay as it is."""
    path = tmp_path / "victim"
    path.write_text("years of work")
    return path


def links_to(victim: Path, folder: Path, *names: str) -> None:
    """Put links where a writer would write if its names could be foreseen."""
    for name in names:
        for token in ("", f".{os.getpid()}", f".{os.getpid()}-{TOKEN}"):
            (folder / f".{name}{token}.tmp").symlink_to(victim)


def test_no_two_names_are_the_same():
    assert len({work_name(Path("x")) for _ in range(100)}) == 100


def test_a_link_at_the_name_is_not_followed(victim, tmp_path, monkeypatch):
    monkeypatch.setattr(secrets, "token_hex", lambda _: TOKEN)  # as if it had been foreseen
    links_to(victim, tmp_path, "x")

    def write():
        with whole_file(tmp_path / "x") as file:
            file.write(b"evil")

    with pytest.raises(TracekitError, match=r"Cannot write .*x: File exists"):
        write()
    assert victim.read_text() == "years of work"
    assert len(list(tmp_path.glob(".x*.tmp"))) == 3  # nor is it removed


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("replay", "x.csv", "--format", "csv", "-o"), "out.csv"),
        (("replay", "x.csv", "-o"), "out.json"),
        (("info", "x.csv", "-o"), "out.txt"),
        (("plot", "working-set", "x.csv", "-o"), "out.csv"),
    ],
)
def test_a_result_is_not_written_through_a_link(words, name, victim, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "x.csv")
    links_to(victim, tmp_path, name)
    assert run(*words, name).code == 0
    assert victim.read_text() == "years of work"
    assert (tmp_path / name).stat().st_size > 100


def test_a_trace_is_not_written_through_a_link(victim, tmp_path):
    links_to(victim, tmp_path, "a.trace", "b.trace")
    write_trace(synthesize(), tmp_path / "a.trace")
    with writer_for(tmp_path / "b.trace") as writer:
        files = ("trace.json", "layers.parquet", "routing.parquet", "steps.parquet")
        links_to(victim, writer.path, *files, "routing-00000.parquet", "steps-00000.parquet")
        writer.write_layers([])
        writer.write_pass(*a_pass(0))
    assert Trace.open(tmp_path / "b.trace").complete
    assert victim.read_text() == "years of work"
