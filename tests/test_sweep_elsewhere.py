"""Sweeps on an executor: the same figures, a sentence for each thing that can go wrong, work kept."""

import json
import pickle
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest
from cli_helpers import run
from sweeps import HEAD, SMALL, STUDY, check_same, write_study

from tracekit.studies import FinishedWork, sweep
from tracekit.studies.cluster import check_where
from tracekit.studies.sent import Call
from tracekit.trace import TracekitError, UsageError, synthesize, write_trace


class Immediately:
    """An executor that runs a call at once; `meet` may do something before, or raise."""

    def __init__(self, meet=lambda number: None):
        self.meet = meet
        self.n_calls = 0

    def submit(self, function, /, *args):
        future = Future()
        self.n_calls += 1
        try:
            self.meet(self.n_calls)
            future.set_result(function(*args))
        except BaseException as error:
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def expected(study):
    return sweep(study)


@pytest.fixture
def own_study(tmp_path):
    return write_study(tmp_path, SMALL)


def test_an_executor_gives_the_same_to_the_last_bit(study, expected):
    seen = []
    with ThreadPoolExecutor(3) as pool:
        result = sweep(study, executor=pool, progress=lambda *done: seen.append(done))
    check_same(result, expected)
    n_units = 2 * 2 + 1 + 2 + 1
    assert seen == [(i, n_units) for i in range(1, n_units + 1)]


def test_a_scheduler_that_is_gone_when_it_is_asked_how_many_workers_it_has(study):
    closed = type("CommClosedError", (OSError,), {"__module__": "distributed.comm.core"})

    class Gone(Immediately):
        def nthreads(self):
            raise closed("Stream is closed")

    with pytest.raises(TracekitError, match=r"^The connection to the workers was lost\.$"):
        sweep(study, executor=Gone())


@pytest.mark.slow
def test_finished_work_is_not_done_again(study, expected, tmp_path):
    kept = tmp_path / "kept.jsonl"
    check_same(sweep(study, finished=kept), expected)
    again = FinishedWork(kept)
    idle = Immediately()
    check_same(sweep(study, executor=idle, finished=again), expected)
    assert (idle.n_calls, again.n_added) == (0, 0)


@pytest.mark.slow
def test_only_cells_that_are_new_are_run(own_study, tmp_path):
    kept = tmp_path / "kept.jsonl"
    sweep(own_study, finished=kept)
    text = own_study.read_text()
    own_study.write_text(text.replace("[0.5, 1, 2]", "[0.5, 1, 1.5, 2]"))
    finished = FinishedWork(kept)
    result = sweep(own_study, finished=finished)
    # LRU, random with each seed, and the bound; and what each seed gives together.
    assert finished.n_added == 1 + 2 + 1 + 2
    check_same(result, sweep(own_study))


@pytest.mark.slow
def test_work_of_another_trace_version_or_seed_is_done_again(own_study, tmp_path, monkeypatch):
    kept = tmp_path / "kept.jsonl"
    sweep(own_study, finished=kept)
    n_known = FinishedWork(kept).n_found

    def n_added():
        finished = FinishedWork(kept)
        sweep(own_study, finished=finished)
        return finished.n_added

    assert n_added() == 0
    write_trace(synthesize(3, 12, 2, 40, 2, 4, 7), own_study.parent / "one.trace", force=True)
    assert n_added() == n_known
    own_study.write_text(own_study.read_text() + "skip = 2\n")
    assert n_added() == n_known
    monkeypatch.setattr("tracekit.studies.finished.version", lambda: "9.9")
    assert n_added() == n_known


@pytest.mark.slow
def test_a_cut_line_is_passed_over(own_study, tmp_path):
    kept = tmp_path / "kept.jsonl"
    expected = sweep(own_study, finished=kept)
    whole = kept.read_bytes()
    kept.write_bytes(whole[:-100])
    finished = FinishedWork(kept)
    check_same(sweep(own_study, finished=finished), expected)
    assert finished.n_added == 1
    assert FinishedWork(kept).n_found == whole.count(b"\n") - 1


def test_another_file_is_not_taken_for_finished_work(own_study):
    path = own_study.with_suffix(".finished.jsonl")
    path.write_text("milk\n")
    for words in ((), ("--resume",)):
        done = run("sweep", own_study, *words)
        assert done.code == 2
        assert done.err.startswith(f"Error: {path} is in the way: finished work is kept there")
    assert path.read_text() == "milk\n"


# ---- what is broken off -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "what",
    [
        KeyboardInterrupt(),
        pytest.param(BrokenProcessPool(), marks=pytest.mark.slow),
        pytest.param(RuntimeError("shutdown"), marks=pytest.mark.slow),
    ],
)
def test_what_is_broken_off_goes_on_where_it_ended(what, own_study, tmp_path):
    kept = tmp_path / "kept.jsonl"

    def after_three(number):
        if number > 3:
            raise what

    with pytest.raises((KeyboardInterrupt, TracekitError)):
        sweep(own_study, executor=Immediately(after_three), finished=kept)
    finished = FinishedWork(kept)
    n_found = finished.n_found
    assert n_found > 2
    check_same(sweep(own_study, executor=Immediately(), finished=finished), sweep(own_study))
    assert finished.n_taken == n_found


def killed(number):
    raise type("KilledWorker", (Exception,), {})("task", "worker")


def lost(number):
    raise type("CommClosedError", (OSError,), {"__module__": "distributed.comm.core"})("gone")


def raised_by_dask(error):
    core = {"__name__": "distributed.comm.core", "error": error}
    exec("def connect(): raise error", core)
    return lambda number: core["connect"]()


def died(number):
    raise BrokenProcessPool("A process in the process pool was terminated abruptly")


def without_tracekit(number):
    raise ModuleNotFoundError("No module named 'tracekit'")


def shut_down(number):
    raise RuntimeError("cannot schedule new futures after shutdown")


@pytest.mark.parametrize(
    ("meet", "says"),
    [
        (killed, "Workers died again and again while they worked on trace one; often they lack memory."),
        (lost, "The connection to the workers was lost."),
        (raised_by_dask(OSError("Timed out trying to connect to tcp://host:1 after 30 s")),
         "The connection to the workers was lost."),
        (raised_by_dask(RuntimeError("ConnectionPool is closed")),
         "The connection to the workers was lost."),
        (died, "A worker process died while it worked on trace one, and its pool takes no more work."),
        (without_tracekit, "A worker has no tracekit, or another version of it; install the same"
         " version on every worker."),
        (shut_down, "The executor was shut down."),
    ],
)  # fmt: skip
def test_what_an_executor_can_meet_is_a_sentence(meet, says, study):
    with pytest.raises(TracekitError) as error:
        sweep(study, executor=Immediately(meet))
    assert str(error.value) == says


@pytest.mark.parametrize("error", [ZeroDivisionError, OSError, RuntimeError])
def test_a_fault_of_tracekit_itself_is_no_sentence(study, error):
    def fault(number):
        raise error

    with pytest.raises(error):
        sweep(study, executor=Immediately(fault))


def test_what_is_no_executor_is_refused(study):
    with pytest.raises(UsageError, match=r"takes a dask client, or .* not str\."):
        sweep(study, executor="dask")
    with pytest.raises(UsageError, match=r"takes a dask client, or .* not the class Immediately\."):
        sweep(study, executor=Immediately)


def test_a_trace_that_the_worker_does_not_see(own_study):
    def moved(number):
        if number == 1:
            (own_study.parent / "one.trace").rename(own_study.parent / "gone.trace")

    with pytest.raises(
        TracekitError, match=r"one\.trace is not on .* put it into a folder that every"
    ):
        sweep(own_study, executor=Immediately(moved))


def test_a_trace_that_is_another_on_the_worker(own_study):
    def changed(number):
        if number == 1:
            other = synthesize(3, 12, 2, 40, 2, 4, 9)
            write_trace(other, own_study.parent / "one.trace", force=True)

    with pytest.raises(
        TracekitError, match=r"one\.trace on .* is not the trace that was opened first"
    ):
        sweep(own_study, executor=Immediately(changed))


def test_another_version_on_the_worker(study, monkeypatch):
    call = bytes(Call("a unit", b"", "plan"))
    monkeypatch.setattr("tracekit.studies.sent.version", lambda: "9.9")
    answer = pickle.loads(call)
    assert isinstance(answer.error, TracekitError)
    assert "has tracekit 9.9, and this machine has 0.1.0" in str(answer.error)


# ---- the user's own -----------------------------------------------------------------------------

OWN = """
from tracekit.policies import PlainPolicy

class Mine(PlainPolicy):
    name = "mine"
    summary = "evicts what was admitted first"

    def start(self, batches):
        self.admitted = {}

    def touch(self, key, now, hit):
        if not hit:
            self.admitted[key] = now

    def victim(self, evictable):
        return min(evictable, key=self.admitted.get)
"""


@pytest.fixture
def mine(own_study, monkeypatch):
    """A study with a policy that is a file of the current folder."""
    monkeypatch.chdir(own_study.parent)
    (own_study.parent / "mine_of_a_sweep.py").write_text(OWN)
    own_study.write_text(
        HEAD + '[[run]]\npolicies = ["lru", "mine_of_a_sweep:Mine"]\ncache_cycles = [1, 2]\n'
    )
    monkeypatch.delitem(__import__("sys").modules, "mine_of_a_sweep", raising=False)
    return own_study


@pytest.mark.slow
def test_an_own_policy_goes_to_the_worker_and_is_kept_while_its_file_is_the_same(mine, tmp_path):
    kept = tmp_path / "kept.jsonl"
    result = sweep(mine, executor=Immediately(), finished=kept)
    check_same(result, sweep(mine))
    finished = FinishedWork(kept)
    check_same(sweep(mine, finished=finished), result)
    assert finished.n_added == 0
    (tmp_path / "mine_of_a_sweep.py").write_text(OWN + "# otherwise\n")
    sweep(mine, finished=finished)
    assert finished.n_added > 0


def test_what_an_own_policy_raises_on_a_worker_is_said(mine):
    path = mine.parent / "mine_of_a_sweep.py"
    path.write_text(OWN.replace("self.admitted[key] = now", "1 / 0"))
    with pytest.raises(
        TracekitError, match=r"touch\(\) of mine_.*, line 13, raised ZeroDivisionError"
    ):
        sweep(mine, executor=Immediately())


# ---- the command --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_leaves_finished_work_only_where_it_is_asked_to_or_broken_off(own_study):
    kept = own_study.with_suffix(".finished.jsonl")
    assert run("sweep", own_study).code == 0
    assert not kept.exists()
    assert f"{kept}: took 0, added " in run("sweep", own_study, "--resume").err
    size = kept.stat().st_size
    assert "added 0; it is kept" in run("sweep", own_study, "--resume", "--check").err
    said = run("sweep", own_study).err
    assert f"{kept} holds finished work of a former sweep; --resume takes it." in said
    assert kept.stat().st_size > size


def test_a_command_that_fails_says_where_its_work_is_kept(own_study):
    own_study.write_text(own_study.read_text() + '[[run]]\npredictors = ["stale-gate"]\n')
    done = run("sweep", own_study)
    kept = own_study.with_suffix(".finished.jsonl")
    assert done.code != 0
    assert f"What was finished is kept in {kept}; --resume goes on from there.\n" in done.err
    header, *lines = kept.read_text().splitlines()
    assert json.loads(header) == {"schema": "tracekit.finished/1"}
    assert {*json.loads(lines[0])} == {"key", "value"}


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        ("nonsense", "nonsense"),
        ("", ""),
        ("tcp://host", "tcp://host"),
        ("https://user:secret@host/x", "https://host/x"),
    ],
)
def test_nonsense_is_no_place_to_run(where, shown, study):
    done = run("sweep", study, "--on", where)
    assert done.code == 2
    assert done.err == (
        "Error: --on takes dask, for workers on this machine, or the address of a dask scheduler, as in "
        f"tcp://host:8786, not {shown!r}.\n"
    )


def test_jobs_are_for_this_machine():
    check_where("dask", 2)
    check_where("tls://user:secret@host:8786", None)
    with pytest.raises(UsageError, match="--jobs is for this machine"):
        check_where("tcp://host:8786", 2)


def test_without_dask_the_extra_is_named(study, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    done = run("sweep", study, "--on", "dask")
    assert done.code == 2
    assert done.err.endswith("install it with: pip install 'tracekit[cluster]'\n")


def test_a_study_with_errors_starts_no_cluster(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    path = tmp_path / "x.toml"
    path.write_text(STUDY.replace("policies =", "polices =", 1))
    done = run("sweep", path, "--on", "dask")
    assert (done.code, "polices" in done.err) == (2, True)
