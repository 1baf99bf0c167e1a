"""Traces that lie elsewhere: few requests, a cache, and no secret in any text."""

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import fsspec
import numpy as np
import pytest
from cli_helpers import run
from fsspec.implementations.memory import MemoryFileSystem
from trace_recorder import record, writer_for

import tracekit
from tracekit.formats import open_any
from tracekit.trace import Trace, TraceError, UsageError, remote, synthesize, write_trace
from tracekit.trace.schema import FACTS_FILE, ROUTING_FILE
from tracekit.trace.urls import UrlPath, masked

URL = "memory://bucket/run.trace"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])
    return tmp_path / "cache" / "tracekit" / "remote"


@pytest.fixture
def reads(monkeypatch):
    """The reads of the memory file system: (name, first byte, last byte)."""
    asked = []
    whole, opened = MemoryFileSystem.cat_file, MemoryFileSystem._open

    def cat_file(self, path, start=None, end=None, **how):
        asked.append((path.rpartition("/")[2], start, end))
        return whole(self, path, start, end, **how)

    def open_(self, path, *how, **more):
        asked.append((path.rpartition("/")[2], "open", None))
        return opened(self, path, *how, **more)

    monkeypatch.setattr(MemoryFileSystem, "cat_file", cat_file)
    monkeypatch.setattr(MemoryFileSystem, "_open", open_)
    return asked


@pytest.fixture(scope="module")
def made():
    return synthesize(4, 16, 2, 30, n_turns=2, prefill=4, seed=3, logits=True)


@pytest.fixture
def there(made, tmp_path):
    """The URL of a trace."""
    local = tmp_path / "run.trace"
    write_trace(made, local)
    upload(local)
    return URL


def upload(local, url=URL):
    memory = fsspec.filesystem("memory")
    for file in local.iterdir():
        memory.pipe(f"{url.removeprefix('memory:/')}/{file.name}", file.read_bytes())


def test_a_replay_of_a_small_trace_takes_few_reads(there, made, reads):
    trace = tracekit.open_trace(there)
    found = tracekit.replay(trace, ["lru", "belady"], cache_fraction=[0.2])
    assert 0 < len(reads) <= 10
    assert len(reads) == 4  # trace.json, and each file once
    wanted = tracekit.replay(made, ["lru", "belady"], cache_fraction=[0.2])
    assert [r["hits"] for r in found.records] == [r["hits"] for r in wanted.records]
    assert trace.name == URL
    assert trace.digest == made.digest
    reads.clear()
    again = tracekit.open_trace(there)
    np.testing.assert_array_equal(
        again.routing(["experts"])["experts"], made.routing(["experts"])["experts"]
    )
    assert [name for name, *_ in reads] == [FACTS_FILE]  # the rest is in the cache


def test_only_what_is_asked_for_of_a_large_file_is_fetched(tmp_path, reads, monkeypatch):
    made = synthesize(4, 16, 2, 30, logits=True, gate_inputs=True, n_embd=512)
    write_trace(made, tmp_path / "run.trace")
    upload(tmp_path / "run.trace")
    reads.clear()
    monkeypatch.setattr(remote, "WHOLE_BYTES", 0)
    monkeypatch.setattr(remote, "BLOCK_BYTES", 4096)
    trace = Trace.open(URL, validate=False)
    layers = trace.routing(["layer"])["layer"]
    np.testing.assert_array_equal(layers, made.routing(["layer"])["layer"])
    n_bytes = sum(stop - start for name, start, stop in reads if name == ROUTING_FILE)
    assert 0 < n_bytes < trace.rows(ROUTING_FILE).n_bytes / 2
    np.testing.assert_array_equal(
        trace.routing(["logits"])["logits"], made.routing(["logits"])["logits"]
    )


def test_every_command_takes_a_url(there, tmp_path):
    out = json.loads(run("info", there, "--format", "json").out)
    assert out["path"] == URL
    done = run("replay", there, "--policy", "lru,prev-token", "--cache-fraction", "0.3")
    assert done.code == 0, done.err
    assert run("predict", there, "--predictor", "prev-token").code == 0
    done = run("import", there, "-o", tmp_path / "copy.trace")
    assert done.code == 0, done.err
    assert Trace.open(tmp_path / "copy.trace").digest == out["digest"]
    assert run("export", there, "-o", tmp_path / "x.csv").code == 0
    done = run("info", there, "--verify")
    assert done.code == 0
    assert f"{URL} holds what its digest says" in done.err


def test_files_of_other_formats_are_fetched_once(tmp_path, made, reads):
    run(
        "export",
        shutil.copytree(_written(made, tmp_path), tmp_path / "c.trace"),
        "-o",
        tmp_path / "x.csv",
    )
    fsspec.filesystem("memory").pipe("/bucket/x.csv", (tmp_path / "x.csv").read_bytes())
    reads.clear()
    for _ in range(2):
        trace = open_any("memory://bucket/x.csv")
        assert trace.name == "memory://bucket/x.csv"
        assert trace.n_rows == made.n_rows
    assert len(reads) == 1
    done = run("import", "memory://bucket/x.csv", "-o", tmp_path / "y.trace")
    assert done.code == 0, done.err
    assert str(tmp_path / "cache") not in done.err
    fsspec.filesystem("memory").pipe("/bucket/bad.csv", b"token,layer,expert\n0,0,x\n0,0,1\n")
    done = run("info", "memory://bucket/bad.csv")
    assert done.code == 3
    assert done.err.startswith("Error: memory://bucket/bad.csv, line 2")


def _written(made, tmp_path):
    write_trace(made, tmp_path / "w.trace")
    return tmp_path / "w.trace"


def test_a_recording_that_was_cut_is_read(tmp_path):
    local = tmp_path / "cut.trace"
    writer = writer_for(local, flush_ms=0, part_bytes=1, threaded=False)
    writer.write_layers([{"layer": n, "expert_bytes": 1000} for n in range(3)])
    record(writer, 0, 4)
    writer.close(complete=False)
    upload(local)
    trace = tracekit.open_trace(URL)
    assert trace.n_rows == Trace.open(local).n_rows
    assert trace.warnings[0].startswith(f"{URL} is incomplete")


def test_a_block_that_is_not_whole_is_fetched_again(there, made, cache, reads):
    tracekit.open_trace(there)
    blocks = [path for path in cache.rglob("*") if path.is_file()]
    assert len(blocks) == 3
    for block in blocks:
        block.write_bytes(block.read_bytes()[:-3])
    reads.clear()
    assert tracekit.open_trace(there).computed_digest() == made.digest
    assert len(reads) == 4
    assert not list(cache.rglob("*.tmp"))


def test_several_that_fetch_at_once_do_not_disturb_each_other(there, made, monkeypatch):
    monkeypatch.setattr(remote, "WHOLE_BYTES", 0)
    monkeypatch.setattr(remote, "BLOCK_BYTES", 1000)
    with ThreadPoolExecutor(4) as pool:
        digests = list(pool.map(lambda _: Trace.open(there).computed_digest(), range(8)))
    assert set(digests) == {made.digest}


def test_another_content_at_the_same_place_is_not_taken_from_the_cache(there, tmp_path):
    tracekit.open_trace(there)
    other = synthesize(4, 16, 2, 30, n_turns=2, prefill=4, seed=9, logits=True)
    write_trace(other, tmp_path / "other.trace")
    upload(tmp_path / "other.trace")
    assert tracekit.open_trace(there).computed_digest() == other.digest


# ---- what goes wrong ----------------------------------------------------------------------------

SECRET = "s3cr3t"


class _Faulty(MemoryFileSystem):
    protocol = "faulty"
    error: Exception = OSError()

    def cat_file(self, *_, **__):
        raise self.error

    info = ls = cat_file


class _Refused(Exception):  # noqa: N818
    status = 403


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FileNotFoundError(SECRET), "does not exist"),
        (PermissionError(SECRET), "may not be read with the credentials"),
        (_Refused(SECRET), "may not be read with the credentials"),
        (OSError(SECRET), r"cannot be read \(OSError\); check the address"),
        (ImportError(SECRET), "needs what fsspec needs for faulty://, which is not installed"),
    ],
)
@pytest.mark.parametrize("name", ["run.trace", "run.csv"])
def test_a_fault_is_one_sentence_without_secrets(error, said, name, monkeypatch):
    fsspec.register_implementation("faulty", _Faulty, clobber=True)
    monkeypatch.setattr(_Faulty, "error", error)
    url = f"faulty://me:{SECRET}@host/{name}?sig={SECRET}"
    for command in ("info", "replay"):
        done = run(command, url)
        assert done.code in (2, 3)
        assert SECRET not in done.err + done.out
    with pytest.raises((TraceError, UsageError), match=said) as refused:
        open_any(url)
    assert str(refused.value).startswith(f"faulty://***@host/{name}?***")


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r"needs the package s3fs.*`pip install s3fs`"):
        open_any("s3://bucket/x.trace")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(
        UsageError, match=r"https://\*\*\*@host/x.trace\?\*\*\* needs the package aiohttp"
    ):
        open_any(f"https://me:{SECRET}@host/x.trace?sig={SECRET}")
    with pytest.raises(UsageError, match="names no file system that fsspec knows"):
        open_any("nonsense://bucket/x.trace")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"`pip install 'tracekit\[remote\]' gcsfs` installs it"):
        open_any("gs://bucket/x.trace")


def test_a_cache_that_cannot_be_written_is_named(there, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    done = run("info", there)
    assert done.code == 1
    assert done.err.startswith(f"Error: Cannot write {tmp_path / 'file'}")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/a/x.trace", "s3://bucket/a/x.trace"),
        ("https://host:8080/x.trace", "https://host:8080/x.trace"),
        ("https://me:pw@host:80/x.trace", "https://***@host:80/x.trace"),
        ("https://host/x.trace?X-Amz-Signature=1", "https://host/x.trace?***"),
        ("https://me:p/w@host/x.trace", "https://***@host/x.trace"),
        ("https://me:p?w@host/x.trace", "https://***@host/x.trace"),
        ("https://me:p#w", "https://***"),
        ("hf://datasets/me/data@main/x.trace", "hf://datasets/me/data@main/x.trace"),
        ("zip://x.csv::https://me:pw@host/x.zip?s=1", "zip://x.csv::https://***@host/x.zip?***"),
        ("https://[::1]:80/x.trace", "https://[::1]:80/x.trace"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url, shown):
    assert masked(url) == shown
    assert str(UrlPath(url)) == shown
    assert UrlPath(url).url == url
