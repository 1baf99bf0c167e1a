"""`tracekit replay` of several traces: each as if it were replayed alone, here or by workers."""

import csv
import io
import json
from concurrent.futures import Future

import pytest
from cli_helpers import run

from tracekit.trace import synthesize, write_trace

ASKED = (
    "--policy",
    "lru,random,bound",
    "--cache-fraction",
    "0.1,0.4",
    "--param",
    "random.seed=1,2",
)


class Immediately:
    """An executor that runs a call at once."""

    def submit(self, function, /, *args):
        future = Future()
        future.set_result(function(*args))
        return future


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    folder = tmp_path_factory.mktemp("traces")
    paths = [folder / f"{name}.trace" for name in ("one", "two", "three")]
    for seed, path in enumerate(paths):
        write_trace(synthesize(3, 12, 2, 30, 2, 4, seed), path)
    return paths[:2]


@pytest.fixture
def workers(monkeypatch):
    """Let ``--on dask`` be an executor of this process."""

    class Opened:
        def __enter__(self):
            return Immediately()

        def __exit__(self, *error):
            return None

    monkeypatch.setattr("tracekit.cli.replay_on.client_on", lambda *args: Opened())


def test_each_has_the_table_that_it_has_alone(traces):
    alone = [run("replay", path, *ASKED).out for path in traces]
    both = run("replay", *traces, *ASKED)
    assert (both.code, both.err) == (0, "")
    assert both.out == "\n\n".join(alone)
    assert alone[0] != alone[1]


def test_rows_and_notes_name_their_trace(traces):
    done = run("replay", *traces, *ASKED, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [row["trace"] for row in rows] == [str(path) for path in traces for _ in range(8)]
    assert all(line.split(": ")[0] in map(str, traces) for line in done.err.splitlines())
    alone = run("replay", traces[1], *ASKED, "--format", "csv").out
    columns = [{k: v for k, v in row.items() if k != "trace"} for row in rows[8:]]
    assert columns == list(csv.DictReader(io.StringIO(alone)))


def test_the_json_object_has_that_of_each(traces):
    document = json.loads(run("replay", *traces, *ASKED, "--format", "json").out)
    assert document["schema"] == "tracekit.replays/1"
    assert document["replays"] == [
        json.loads(run("replay", path, *ASKED, "--format", "json").out) for path in traces
    ]


def test_predictors_are_scored_on_each(traces):
    done = run("replay", *traces, "--policy", "prev-token")
    assert done.out == "\n\n".join(
        run("replay", path, "--policy", "prev-token").out for path in traces
    )


def test_what_is_missing_is_said_before_the_first_is_replayed(traces, monkeypatch):
    monkeypatch.setattr("tracekit.replaying.replay", None)
    done = run("replay", traces[0], traces[0].parent / "no.trace")
    assert (done.code, done.out) == (3, "")
    assert done.err.strip().endswith("no.trace does not exist; name an existing trace.")


# ---- on workers ---------------------------------------------------------------------------------


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_workers_give_the_same_to_the_last_digit(form, traces):
    warm = traces[0].with_name("three.trace")
    further = ("--skip", "3", "--warm", warm, "--bypass", "--format", form)
    here = run("replay", *traces, *ASKED, *further)
    there = run("replay", *traces, *ASKED, *further, "--on", "dask")
    assert here.code == 0
    assert (there.code, there.out, there.err) == (0, here.out, here.err)


@pytest.fixture
def unsized(tmp_path):
    """Return a trace that does not say how many bytes an expert has."""
    path = tmp_path / "unsized.csv"
    rows = [f"{layer},{token},{token % 5}" for token in range(9) for layer in (0, 1)]
    path.write_text("\n".join(["layer,token,expert", *rows]))
    return path


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("form", ["table", "csv", "json"])
def test_workers_give_the_same_of_a_trace_without_sizes(form, traces, unsized):
    asked = (traces[0], unsized, "--policy", "lru", "--cache-slots", "2", "--format", form)
    here, there = run("replay", *asked), run("replay", *asked, "--on", "dask")
    assert here.code == 0
    assert (there.code, there.out, there.err) == (0, here.out, here.err)


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("where", [(), ("--on", "dask")])
def test_of_several_a_sentence_names_the_trace_that_is_wrong(where, traces, unsized):
    done = run("replay", traces[0], unsized, "--policy", "lru", "--cache-mib", "1", *where)
    assert done.code == 1
    assert f"since {unsized} does not say how many bytes" in done.err


@pytest.mark.usefixtures("workers")
def test_one_trace_on_workers_is_as_one_here(traces):
    assert run("replay", traces[0], "--on", "dask").out == run("replay", traces[0]).out


def test_what_workers_do_not_do_is_named(traces):
    done = run("replay", *traces, "--policy", "lru,prev-token", "--per-layer", "--on", "dask")
    assert done.code == 2
    assert done.err == (
        "Error: --on only replays cache policies at budgets: leave out predictors and --per-layer, or "
        "leave out --on.\n"
    )


def test_where_is_checked_before_a_trace_is_opened(traces, monkeypatch):
    monkeypatch.setattr("tracekit.cli.replay_on.open_trace", None)
    done = run("replay", *traces, "--on", "host:8786")
    assert done.code == 2
    assert "--on takes dask, for workers on this machine, or the address" in done.err


@pytest.mark.slow
def test_dask_gives_the_same(traces):
    pytest.importorskip("distributed", reason="the extra cluster is not installed")
    here = run("replay", *traces, *ASKED)
    there = run("replay", *traces, *ASKED, "--on", "dask", "--jobs", "2")
    assert (there.code, there.out) == (0, here.out)
