"""``tracekit import --metrics``: the times of BigMoeOnEdge, token by token, and bad files."""

import json

import numpy as np
import pytest
from cli_helpers import csv_lines, run, write_csv
from timed_runs import HEADER, lru_bytes, metrics, routed, wall

from tracekit import open_trace
from tracekit.formats.metrics import with_metrics
from tracekit.trace import TraceError

DECODE = 5
READ = 5 << 20  # what each token of csv_lines misses


@pytest.fixture
def route(tmp_path):
    return write_csv(tmp_path / "small.route.csv", csv_lines(decode=DECODE, turns=2))


def written(path, **changed):
    values = {
        "step": range(1, 11),
        "wall_ms": np.arange(10) + 50.5,
        "io_ms": np.arange(10) + 20.25,
        "stall_ms": np.arange(10) + 7.0,
        "read_bytes": [READ] * 10,
    } | changed
    columns = {name: column for name, column in values.items() if column is not None}
    lines = [",".join(columns)]
    lines += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join([*lines, "# summary tokens=10 s/tok=0.1", ""]))
    return path


def steps_of(trace):
    names = ["phase", "wall_ms", "io_ms", "stall_ms", "read_bytes"]
    return trace.steps(names)


def test_times_stand_among_the_steps(tmp_path, route):
    out = tmp_path / "small.trace"
    file = written(tmp_path / "small.metrics")
    done = run("import", route, "--metrics", file, "-q", "-o", out)
    assert (done.code, done.err) == (0, "")
    steps = steps_of(open_trace(out))
    decoded = steps["phase"] == 1
    assert steps["wall_ms"][decoded].tolist() == (np.arange(10) + 50.5).tolist()
    assert steps["io_ms"][decoded].tolist() == (np.arange(10) + 20.25).tolist()
    assert steps["stall_ms"][decoded].tolist() == (np.arange(10) + 7.0).tolist()
    assert steps["read_bytes"][decoded].tolist() == [READ] * 10
    assert np.isnan(steps["wall_ms"][~decoded]).all()
    assert (steps["read_bytes"][~decoded] == -1).all()
    facts = json.loads((out / "trace.json").read_text())
    assert facts["notes"]["mode"] == "overlap"
    assert facts["notes"]["metrics"] == "small.metrics"


def test_the_wait_of_a_serial_run_is_that_of_reading(tmp_path, route):
    trace = with_metrics(open_trace(route), written(tmp_path / "x.metrics", stall_ms=[0] * 10))
    steps = steps_of(trace)
    decoded = steps["phase"] == 1
    assert steps["stall_ms"][decoded].tolist() == (np.arange(10) + 20.25).tolist()
    assert trace.facts.notes["mode"] == "serial"


def test_columns_may_be_missing(tmp_path, route):
    file = written(tmp_path / "x.metrics", stall_ms=None, io_ms=None)
    trace = with_metrics(open_trace(route), file)
    assert not trace.has_steps("stall_ms")
    assert "mode" not in trace.facts.notes
    assert trace.has_steps("wall_ms")


def test_a_trace_may_get_times_later(tmp_path, route):
    first, second = tmp_path / "first.trace", tmp_path / "second.trace"
    assert run("import", route, "-q", "-o", first).code == 0
    file = written(tmp_path / "x.metrics")
    assert run("import", first, "--metrics", file, "-q", "-o", second).code == 0
    assert open_trace(second).has_steps("wall_ms")
    assert open_trace(second).digest == open_trace(first).digest


NINE = {"step": range(9), "wall_ms": [5] * 9, "io_ms": None, "stall_ms": None}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"wall_ms": None}, "lacks the column wall_ms"),
        ({"read_bytes": None}, "lacks the column read_bytes"),
        ({"wall_ms": [1] * 9 + [""]}, "row 10: wall_ms is missing"),
        ({"wall_ms": [1, "nan"] + [1] * 8}, "row 2: wall_ms is missing or no number"),
        ({"wall_ms": [1, -3] + [1] * 8}, "row 2: wall_ms is -3"),
        ({"io_ms": [1, "inf"] + [1] * 8}, "row 2: io_ms is inf"),
        ({"wall_ms": [1, "fast"] + [1] * 8}, "cannot be read as metrics"),
        ({"read_bytes": [1e30] + [READ] * 9}, "row 1: read_bytes is 1e+30"),
        (NINE | {"read_bytes": [READ] * 9}, "9 tokens, and"),
        ({"read_bytes": [3 * READ] * 10}, "is of another run"),
        ({"read_bytes": [READ // 3] * 10}, "is of another run"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path, route, changed, word):
    file = written(tmp_path / "x.metrics", **changed)
    out = tmp_path / "small.trace"
    done = run("import", route, "--metrics", file, "-q", "-o", out)
    assert done.code == 3
    assert word in done.err
    assert done.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize("text", ["", "# summary\n", "wall_ms", "\0\1\2", "a,b\n1,2,3\n", HEADER])
def test_what_is_no_metrics_file_is_one_sentence(tmp_path, route, text):
    file = tmp_path / "x.metrics"
    file.write_text(text)
    with pytest.raises(TraceError) as caught:
        with_metrics(open_trace(route), file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_whole_pages_are_a_little_more_than_the_experts(tmp_path):
    trace = routed()
    read = lru_bytes(trace, 96)
    more = (read * 1.0043).astype(np.int64)
    timed = with_metrics(trace, metrics(tmp_path / "x.metrics", wall(read), more))
    assert timed.steps(["read_bytes"])["read_bytes"].tolist() == more.tolist()


def test_other_formats_take_no_metrics(tmp_path):
    file = tmp_path / "run.jsonl"
    file.write_text('{"token": 0, "layer": 0, "experts": [0, 1]}\n')
    times = written(tmp_path / "x.metrics")
    done = run("import", file, "--metrics", times, "-o", tmp_path / "x.trace")
    assert done.code == 2
    assert "--metrics goes with a route trace" in done.err


def test_the_times_of_a_phone(phone_traces, tmp_path):
    source = phone_traces / "traces"
    trace = open_trace(source / "qwen.route.csv")
    timed = with_metrics(trace, source / "qwen.metrics")
    steps = steps_of(timed)
    decoded = steps["phase"] == 1
    assert decoded.sum() == 128
    assert steps["wall_ms"][decoded][0] == 265.825
    assert steps["read_bytes"][decoded][-1] == 44457984
    with pytest.raises(TraceError, match="128 tokens, and"):
        with_metrics(open_trace(source / "gptoss.route.csv"), source / "qwen.metrics")
