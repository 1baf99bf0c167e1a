"""A model's file that is cut or written to while it is in use: a sentence, and a readable trace."""

import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from families import slow_unless

from tracekit import datasets
from tracekit.trace import Trace, TracekitError
from tracekit_engine import Options, Session, Streaming
from tracekit_engine.mapped import OpenFiles
from tracekit_engine.model import Model
from tracekit_engine.model_file import ModelFile


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copy(datasets.model_path(), tmp_path / "model.gguf"))


def a_recording(model: Path, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tracekit", "record", str(model), "-o", str(out)]
    command += ["-p", "Hello world. " * 60, "-n", "600", "--ignore-eos", *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def cut_at_a_random_moment(copy: Path, out: Path, seed: int, *options: str) -> None:
    rng = random.Random(seed)
    recording = a_recording(copy, out, *options)
    # Half of the moments lie before the first part is written: start, loading, the prompt.
    deadline = time.monotonic() + 60
    while seed % 2 and not list(out.glob("routing*")) and recording.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(rng.uniform(0, 2.5))
    os.truncate(copy, rng.randrange(copy.stat().st_size))
    stderr = recording.communicate(timeout=120)[1]
    assert recording.returncode in (0, 1), stderr
    if recording.returncode == 1:
        (sentence,) = stderr.splitlines()
        assert sentence.startswith(f"Error: {copy} ")
        assert "was cut to" in sentence or "is cut short" in sentence or "damaged" in sentence
    if out.exists():
        trace = Trace.open(out)
        assert trace.complete == (recording.returncode == 0)
        assert trace.n_rows > 0


# In the fast suite a streamed model is cut while it records, and a resident one within a pass, below.
@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *range(3, 16)])
def test_a_resident_model_is_cut(copy: Path, tmp_path: Path, seed: int) -> None:
    cut_at_a_random_moment(copy, tmp_path / "run.trace", seed)


@pytest.mark.slow  # the fast suite cuts the model within a pass, below
@pytest.mark.parametrize("seed", [2, *range(16, 28)])
def test_a_streamed_model_is_cut(copy: Path, tmp_path: Path, seed: int) -> None:
    options = ("--stream", "--cache-mib", "2.4")
    cut_at_a_random_moment(copy, tmp_path / "run.trace", seed, *options)


@pytest.mark.parametrize("threads", slow_unless([1, 2], 2))
def test_a_cut_within_a_pass(copy: Path, threads: int) -> None:
    with Session(copy, Options(n_ctx=1024, threads=threads, chunk=1024)) as session:
        tokens = session.model.tokenize("Hello world. " * 100)[:1024]
        # The last layers' experts are read last, well after the cut.
        last = session.file.expert_tensors[session.plan.layers[-1].layer]
        place = min(tensor.start for tensor in last)
        cut = threading.Timer(0.05, os.truncate, (copy, place))
        cut.start()
        with pytest.raises(TracekitError, match=rf"model\.gguf was cut to {place:,} bytes"):
            session.evaluate(tokens, want_logits=True)
        cut.join()
        with pytest.raises(TracekitError, match="was cut to"):  # it stays refused
            session.evaluate([1], want_logits=True)
    with Session(datasets.model_path(), Options(threads=1)) as session:
        session.evaluate([1], want_logits=True)
        assert np.isfinite(session.logits()).all()


def test_a_few_bytes_cut_from_the_last_page(copy: Path) -> None:
    """No signal comes of that: the rest of the page reads as zeros."""
    with Session(copy, Options(threads=1)) as session:
        session.evaluate([1], want_logits=True)
        os.truncate(copy, copy.stat().st_size - 8)
        with pytest.raises(TracekitError, match="was cut to"):
            session.evaluate([1], want_logits=True)


@pytest.mark.parametrize("streaming", [None, Streaming()])
def test_a_file_that_is_written_to(copy: Path, streaming: Streaming | None) -> None:
    with Session(copy, Options(threads=1, streaming=streaming)) as session:
        session.evaluate([1], want_logits=True)
        size = copy.stat().st_size
        os.truncate(copy, 0)
        os.truncate(copy, size)
        with pytest.raises(TracekitError, match=r"model\.gguf was written to while it was in use"):
            session.evaluate([1], want_logits=True)


def test_a_file_that_loses_its_name_is_still_there(copy: Path) -> None:
    with Session(copy, Options(threads=1)) as session:
        copy.unlink()
        session.evaluate([1], want_logits=True)


def test_a_file_cut_between_its_header_and_its_loading(copy: Path) -> None:
    file = ModelFile.open(copy)
    os.truncate(copy, 1_000_000)
    with pytest.raises(TracekitError, match="was cut to 1,000,000 bytes"):
        Model(file)


def test_a_file_cut_while_llama_cpp_reads_its_header(
    copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapping = OpenFiles.mapping

    def cut_first(files: OpenFiles) -> AbstractContextManager[None]:
        os.truncate(copy, 1_000_000)
        return mapping(files)

    file = ModelFile.open(copy)
    monkeypatch.setattr(OpenFiles, "mapping", cut_first)
    with pytest.raises(TracekitError, match=r"model\.gguf was cut to 1,000,000 bytes"):
        Model(file)


OTHER = """
import mmap, os, sys
from tracekit_engine import Options, Session
path = sys.argv[2]
with open(path, "wb") as file:
    file.write(bytes(8192))
with open(path, "rb") as file:
    own = mmap.mmap(file.fileno(), 8192, access=mmap.ACCESS_READ)
session = Session(sys.argv[1], Options(threads=1))
if sys.argv[3] == "closed":
    session.close()
os.truncate(path, 0)
own[5000]
"""


@pytest.mark.slow
@pytest.mark.parametrize("state", ["open", "closed"])
def test_another_files_bus_error_ends_the_process(model: Path, tmp_path: Path, state: str) -> None:
    command = [sys.executable, "-c", OTHER, str(model), str(tmp_path / "other"), state]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGBUS
