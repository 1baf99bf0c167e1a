"""Sweeps on dask: a cluster on this machine, a scheduler of the user's, and what can go wrong there."""

import asyncio
import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import pytest
from cli_helpers import TRACEKIT, run, run_process
from pages import ROOT
from sweeps import HEAD, check_same, write_study

from tracekit.studies import FinishedWork, sweep
from tracekit.trace import TracekitError, UsageError, synthesize, write_trace

pytestmark = [
    pytest.mark.slow,
    # Sockets of workers that were killed are closed when they are collected.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]
SIX = ("a", "b", "c", "d", "e", "f")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"))


@contextlib.contextmanager
def client_of(n_workers=2):
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=n_workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client():
    with client_of() as client:
        yield client


def six_traces(folder, n_tokens=3000):
    """Six traces, six policies, eleven budgets."""
    head = 'title = "Six"\n'
    for seed, name in enumerate(SIX):
        write_trace(synthesize(12, 64, 4, n_tokens, 2, 8, seed), folder / f"{name}.trace")
        head += f'[traces.{name}]\nfile = "{name}.trace"\n'
    fractions = ", ".join(f"{i / 12:.4f}" for i in range(1, 12))
    path = folder / "six.toml"
    path.write_text(
        head + '[[run]]\npolicies = ["lru", "lfu", "ring", "random", "layer-lru", "belady"]\n'
        f"cache_fraction = [{fractions}]\n"
    )
    return path


def pids_of(client):
    return [pid for pid in client.run(os.getpid).values() if pid != os.getpid()]


def test_a_client_and_its_executor_give_the_same(study, client):
    expected = sweep(study)
    check_same(sweep(study, executor=client), expected)
    check_same(sweep(study, executor=client.get_executor()), expected)


def test_a_pool_of_processes_gives_the_same(study):
    import multiprocessing

    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        check_same(sweep(study, executor=pool), sweep(study))


def test_the_command_on_workers_of_this_machine_writes_the_same(study):
    table = study.with_suffix(".csv")
    assert run_process("sweep", study).code == 0
    expected = table.read_bytes()
    table.unlink()
    done = run_process("sweep", study, "--on", "dask", "--jobs", "2")
    assert (done.code, done.err) == (0, f"Wrote {table}.\n")
    assert table.read_bytes() == expected


def test_six_traces_with_a_worker_killed_on_the_way(tmp_path):
    path = six_traces(tmp_path)
    expected = sweep(path)
    with client_of() as client:
        check_same(sweep(path, executor=client), expected)
        victims = []

        def kill(done, total):
            if done == 2:
                victims.append(pids_of(client)[0])
                os.kill(victims[0], signal.SIGKILL)

        check_same(sweep(path, executor=client, progress=kill), expected)
        assert victims
        assert victims[0] not in pids_of(client)


DEADLY = """
import os
from tracekit.policies import PlainPolicy

class Deadly(PlainPolicy):
    name = "deadly"
    summary = "ends the process"

    def start(self, batches):
        os._exit(9)

    def victim(self, evictable):
        return min(evictable)
"""


def test_a_worker_that_dies_again_and_again_ends_the_sweep_and_keeps_the_rest(
    tmp_path, client, monkeypatch
):
    path = write_study(
        tmp_path,
        HEAD + '[[run]]\npolicies = ["lru", "deadly_on_workers:Deadly"]\ncache_cycles = [1]\n',
    )
    (tmp_path / "deadly_on_workers.py").write_text(DEADLY)
    monkeypatch.chdir(tmp_path)
    kept = tmp_path / "kept.jsonl"
    with pytest.raises(
        TracekitError, match="Workers died again and again while they worked on trace"
    ):
        sweep(path, executor=client, finished=kept)
    assert FinishedWork(kept).n_found > 0
    client.wait_for_workers(2)


def test_a_client_that_cannot_be_used_is_refused(study, client):
    from distributed import Client

    with Client(client.scheduler.address, set_as_default=False) as closed:
        pass
    with pytest.raises(UsageError, match=r"^The dask client is closed; make a new one\.$"):
        sweep(study, executor=closed)

    async def refused():
        address = client.scheduler.address
        async with Client(address, asynchronous=True, set_as_default=False) as other:
            with pytest.raises(UsageError, match=r"^The dask client is asynchronous; "):
                sweep(study, executor=other)

    asyncio.run(refused())


def test_own_policies_go_to_the_workers(tmp_path, client, monkeypatch):
    (tmp_path / "kernels_of_mine.py").write_text((ROOT / "tests/examples/first_in.py").read_text())
    (tmp_path / "guess_of_mine.py").write_text((ROOT / "tests/examples/again.py").read_text())
    path = write_study(
        tmp_path,
        HEAD
        + '[[run]]\npolicies = ["kernels_of_mine:FirstIn", "prefetch"]\ncache_cycles = [1, 2]\n'
        '[run.params]\n"prefetch.predictor" = "guess_of_mine:Again"\n'
        '[[run]]\npredictors = ["guess_of_mine:Again"]\n',
    )
    monkeypatch.chdir(tmp_path)
    # The workers were started elsewhere: they cannot import these files.
    check_same(sweep(path, executor=client), sweep(path))


NOTEBOOK = """
import sys, tracekit
from tracekit.policies import PlainPolicy

class Mine(PlainPolicy):
    name = "mine"
    summary = "of a notebook"
    def victim(self, evictable):
        return min(evictable)

def digest(path):
    return tracekit.open_trace(path).digest

if __name__ == "__main__":
    from distributed import Client, LocalCluster
    with LocalCluster(n_workers=1, dashboard_address="127.0.0.1:0") as cluster, Client(cluster) as client:
        found = tracekit.sweep(sys.argv[1], executor=client)
        assert found.csv == tracekit.sweep(sys.argv[1]).csv
        path = sys.argv[2]
        assert client.submit(digest, path).result() == digest(path)
        print(list(found.frame.policy.unique()))
"""


def test_a_class_and_a_function_of_a_notebook_go_to_the_workers(tmp_path):
    path = write_study(
        tmp_path, HEAD + '[[run]]\npolicies = ["__main__:Mine"]\ncache_cycles = [1, 2]\n'
    )
    # As in a notebook, nothing that a worker could import holds the code.
    code = f"import sys\nexec(compile({NOTEBOOK!r}, '<cell>', 'exec'))"
    words = [sys.executable, "-c", code, path, tmp_path / "one.trace"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "['mine']\n"), done.stderr


def test_a_trace_that_changes_on_the_way(tmp_path, client):
    path = six_traces(tmp_path, 100)

    def change(done, total):
        for name in SIX[1:]:
            write_trace(
                synthesize(12, 64, 4, 100, 2, 8, 77), tmp_path / f"{name}.trace", force=True
            )

    # A worker may be reading a trace at the moment at which another one takes its place.
    refused = "is not the trace that was opened first|was changed while it was read"
    with pytest.raises(TracekitError, match=refused):
        sweep(path, executor=client, progress=change)


def test_a_scheduler_that_does_not_answer(study):
    with socket.socket() as taken:  # listens to nobody
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        start = time.monotonic()
        done = run("sweep", study, "--on", f"tcp://127.0.0.1:{port}")
    assert done.code == 1
    assert done.err == (
        f"Error: The scheduler at tcp://127.0.0.1:{port} does not answer after 30 s; start it with: dask "
        "scheduler\n"
    )
    assert time.monotonic() - start < 120


# ---- a scheduler of the user's --------------------------------------------------------------------


@contextlib.contextmanager
def started(*commands):
    """Start commands of a shell in the background, each a group of processes; end them."""
    processes = [
        subprocess.Popen(
            shlex.split(command), start_new_session=True, stderr=subprocess.DEVNULL, cwd=ROOT
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in reversed(processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in processes:
            process.wait(30)


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def lines_of_the_page():
    """The three lines of shell of the page, at a free port."""
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```\n(dask scheduler [^`]*)```", page)
    lines = block.replace("8786", str(free_port())).splitlines()
    assert len(lines) == 3
    return lines


def test_the_three_lines_of_the_page_run_a_sweep(monkeypatch):
    *background, last = lines_of_the_page()
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    assert all(line.endswith(" &") for line in background)
    with started(*(line.removesuffix(" &") for line in background)):
        words = shlex.split(last)
        assert words[0] == "tracekit"
        done = run_process(*words[1:])
    assert (done.code, "claims hold." in done.out) == (0, True), done.err


def test_a_scheduler_that_ends_on_the_way(tmp_path, monkeypatch):
    path = six_traces(tmp_path, 6000)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable), prepend=os.pathsep)
    *background, _ = lines_of_the_page()
    address = re.search(r"tcp://\S+", background[1])[0]
    kept = path.with_suffix(".finished.jsonl")
    with started(*(line.removesuffix(" &") for line in background)) as (scheduler, _):
        sweeping = subprocess.Popen(
            [*TRACEKIT, "sweep", str(path), "--on", address], stderr=subprocess.PIPE, text=True
        )
        wait_for(kept, sweeping)
        os.killpg(scheduler.pid, signal.SIGKILL)
        _, said = sweeping.communicate(timeout=120)
    assert sweeping.returncode == 1
    said = re.sub(r"The scheduler at .* has no worker yet; waiting for one.\n", "", said)
    assert said == (
        f"What was finished is kept in {kept}; --resume goes on from there.\n"
        "Error: The connection to the workers was lost.\n"
    )


def test_ctrl_c_ends_at_once_and_keeps_what_is_done(tmp_path):
    path = six_traces(tmp_path, 6000)
    kept = path.with_suffix(".finished.jsonl")
    sweeping = subprocess.Popen(
        [*TRACEKIT, "sweep", str(path), "--on", "dask"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(kept, sweeping)
    os.killpg(sweeping.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    _, said = sweeping.communicate(timeout=60)
    assert sweeping.returncode == 130
    assert said == (
        f"What was finished is kept in {kept}; --resume goes on from there.\nError: Interrupted.\n"
    )
    done = run_process("sweep", path, "--resume")
    assert re.search(r"took [1-9]\d*, added [1-9]", done.err)
    with_all, table = path.with_suffix(".csv").read_bytes(), path.with_suffix(".csv")
    table.unlink()
    kept.unlink()
    assert run_process("sweep", path).code == 0
    assert table.read_bytes() == with_all


def wait_for(kept, process):
    """Wait until a sweep has kept something."""
    end = time.monotonic() + 300
    while not kept.exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)
