"""Exported files: read again, they replay to the same figures; what they lack is said."""

import errno
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import run, write_csv
from exact_engine import session
from predict_traces import toy, trace_of
from routing_traces import make_trace

import tracekit
from tracekit.cli.export import FORMATS
from tracekit.exports import EXPORTS, arrays, format_of
from tracekit.formats import ImportOptions, import_any, open_any
from tracekit.routing.passes import whole_passes
from tracekit.trace import Trace, TraceError, TracekitError, UsageError, rows
from tracekit.trace.columns import to_table
from tracekit.trace.schema import ROUTING_FILE, STEPS_FILE
from tracekit.trace.writer import layers_table

READ_AGAIN = ("csv", "parquet", "npz")
PLACES = ("turn", "pass", "phase", "step", "layer", "experts")


def again(trace, tmp_path, ending):
    """Export a trace, and import the file with the flags that the export names."""
    path = tmp_path / f"x.{ending}"
    done = tracekit.export(trace, path)
    flags = dict(zip(done.import_flags[::2], done.import_flags[1::2], strict=True))
    sizes = {name.removeprefix("--").replace("-", "_"): int(n) for name, n in flags.items()}
    import_any(path, tmp_path / f"{ending}.trace", ImportOptions(**sizes))
    return Trace.open(tmp_path / f"{ending}.trace")


def figures(trace, policies=("lru", "lfu", "random", "layer-lru", "belady", "bound")):
    result = tracekit.replay(trace, policies, cache_fraction=[0.0, 0.1, 0.35, 1.0])
    return result.frame


def assert_same(read, trace):
    for name in PLACES:
        np.testing.assert_array_equal(read.routing([name])[name], trace.routing([name])[name], name)
    np.testing.assert_array_equal(read.kept, trace.kept)
    pd.testing.assert_frame_equal(figures(read), figures(trace))


def engine_trace(seed, tmp_path):
    path = tmp_path / "engine.csv"
    path.write_text(session(seed).text)
    return open_any(path)


@pytest.mark.parametrize("ending", READ_AGAIN)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(s, marks=pytest.mark.slow) for s in range(1, 40))]
)
def test_what_an_engine_wrote_comes_back(seed, ending, tmp_path):
    """Chunked prompts, drafts of several tokens, rejections, cancels, turns, unequal sizes."""
    trace = engine_trace(seed, tmp_path)
    read = again(trace, tmp_path, ending)
    assert_same(read, trace)
    assert read.has("residency") == trace.has("residency")
    checked = [
        tracekit.replay(each, "lru", cache_mib=2, validate=True).rows[0].validation
        for each in (read, trace)
    ]
    assert checked[0] == checked[1]


@pytest.mark.slow
@pytest.mark.parametrize("ending", READ_AGAIN)
@pytest.mark.parametrize(
    "name", ["bundled:tiny-moe-64e.trace", "spec.route.csv.gz", "cancel.route.csv"]
)
def test_recorded_traces_come_back(name, ending, tmp_path, phone_traces):
    trace = open_any(name if ":" in name else phone_traces / "cases" / name)
    assert_same(again(trace, tmp_path, ending), trace)


def varied() -> Trace:
    """Return a trace in which everything that can be unknown is unknown somewhere."""
    trace = make_trace(layers=(1, 3), n_turns=2, prefill=3, decode=4)
    rng = np.random.default_rng(0)
    routing = trace.routing([*PLACES])
    n_rows, k = routing["experts"].shape
    weights = rng.random((n_rows, k)).astype(np.float32)
    weights[::5, 1] = np.nan
    columns = {
        **routing,
        "weights": weights,
        "residency": rng.choice([0, 1, 2, 255], (n_rows, k)),
        "dropped": rng.choice([0, 0, 1, 255], (n_rows, k)),
    }
    valid = {
        "weights": ~np.isnan(weights),
        "residency": columns["residency"] != 255,
        "dropped": columns["dropped"] != 255,
    }
    steps = trace.steps(["turn", "pass", "step", "phase"])
    n_steps = len(steps["turn"])
    steps["kept"] = np.arange(n_steps) % 4 != 3  # more than later passes take back
    steps["token"] = np.arange(n_steps)
    layers = trace.layers.slice(0, 2)
    return Trace.from_tables(
        trace.facts,
        layers,
        to_table(columns, trace.rows(ROUTING_FILE).schema, n_rows, valid),
        to_table(steps, trace.rows(STEPS_FILE).schema, n_steps, {"token": steps["token"] % 3 > 0}),
        name="varied",
    )


@pytest.mark.parametrize("ending", READ_AGAIN)
def test_every_column_comes_back(ending, tmp_path):
    trace = varied()
    read = again(trace, tmp_path, ending)
    assert_same(read, trace)
    for name in ("weights", "residency", "dropped"):
        np.testing.assert_array_equal(read.routing([name])[name], trace.routing([name])[name])
    np.testing.assert_array_equal(read.steps(["token"])["token"], trace.steps(["token"])["token"])
    assert read.facts.slot_order == "ranked"
    assert read.facts.model.n_layer == trace.facts.model.n_layer


def test_an_archive_has_what_predictors_read(tmp_path):
    trace = trace_of(toy(turns=(6, 5)), prefill=2)
    read = again(trace, tmp_path, "npz")
    for name in ("logits", "gate_input", "weights"):
        np.testing.assert_array_equal(read.routing([name])[name], trace.routing([name])[name])
    arrays = np.load(tmp_path / "x.npz")
    assert arrays["experts"].shape == (15, 4, 4)
    assert arrays["model"] == "toy"


def test_a_routing_that_is_not_there_is_none(tmp_path):
    """The last layer routes the prompt's last token only."""
    trace = open_any(write_csv(tmp_path / "small.csv"))
    assert_same(again(trace, tmp_path, "npz"), trace)
    experts = np.load(tmp_path / "x.npz")["experts"]
    assert (experts[:2, 1] == -1).all()
    assert (experts[2:] >= 0).all()


def test_slots_are_numbered_only_where_they_are_ranked(tmp_path):
    trace = make_trace(weights=np.full((54, 2), np.nan, np.float32))
    trace.facts = replace(trace.facts, slot_order="unknown")
    read = again(trace, tmp_path, "csv")
    header = (tmp_path / "x.csv").read_text().partition("\n")[0]
    assert header == "prompt,pass,phase,token,layer,expert_bytes,expert"
    assert read.facts.slot_order == "unknown"


def test_a_csv_and_a_parquet_file_have_the_same_rows(tmp_path):
    trace = varied()
    for ending in ("csv", "parquet"):
        tracekit.export(trace, tmp_path / f"x.{ending}")
    rows = pd.read_csv(tmp_path / "x.csv")
    packed = pd.read_parquet(tmp_path / "x.parquet")
    assert len(rows) == trace.n_rows * trace.top_k
    assert list(rows) == list(packed)
    for name in rows.drop(columns="phase"):
        np.testing.assert_array_equal(
            rows[name].astype(np.float32), packed[name].astype(np.float32)
        )
    assert rows["phase"].tolist() == packed["phase"].tolist()


def test_sizes_that_are_not_known_stay_unknown(tmp_path):
    trace = make_trace(layers=(0, 1))
    known = trace.layer_columns["expert_bytes"].tolist()
    for size in ([known[0], -1], [-1, -1]):
        trace = with_sizes(trace, size)
        for ending in READ_AGAIN:
            read = again(trace, tmp_path, ending)
            assert read.layer_columns["expert_bytes"].tolist() == size
            tracekit.export(trace, tmp_path / f"x.{ending}", force=True)
            (tmp_path / f"x.{ending}").unlink()
            shutil.rmtree(tmp_path / f"{ending}.trace")


def with_sizes(trace, sizes):
    layers = [
        {"layer": n, "expert_bytes": None if size < 0 else size} for n, size in enumerate(sizes)
    ]
    return Trace.from_tables(trace.facts, layers_table(layers), trace.table(ROUTING_FILE))


@pytest.mark.parametrize("block_bytes", [1, 300, 1 << 20])
def test_blocks_are_of_whole_passes(block_bytes, monkeypatch):
    monkeypatch.setattr(rows, "BLOCK_BYTES", block_bytes)
    trace = make_trace(prefill=5)
    blocks = list(whole_passes(trace, ["layer"]))
    for name in ("pass", "layer"):
        joined = np.concatenate([block[name] for block in blocks])
        np.testing.assert_array_equal(joined, trace.routing([name])[name])
    seen = [set(block["pass"].tolist()) for block in blocks]
    assert sum(map(len, seen)) == len(set.union(*seen))
    assert (len(blocks) > 2) == (block_bytes < 1 << 20)  # the last pass is one of its own


@pytest.mark.parametrize("ending", READ_AGAIN)
def test_blocks_do_not_show_in_a_file(ending, tmp_path, monkeypatch):
    trace = varied()
    tracekit.export(trace, tmp_path / f"whole.{ending}")
    monkeypatch.setattr(rows, "BLOCK_BYTES", 64)
    tracekit.export(trace, tmp_path / f"x.{ending}")
    pair = [open_any(tmp_path / f"{name}.{ending}") for name in ("whole", "x")]
    assert pair[0].digest == pair[1].digest


def test_the_note_says_what_is_left_out(tmp_path):
    done = tracekit.export(trace_of(toy(turns=(3,))), tmp_path / "x.csv")
    assert done.leaves_out == [
        "logits",
        "gate inputs",
        "embeddings",
        "router matrices and biases",
        "the model's numbers of layers and experts",
        "the rest of trace.json",
    ]
    assert done.import_flags == ["--n-expert", "16", "--n-layer", "4"]


# ---- the command ----------------------------------------------------------------------------


def test_the_command_names_the_way_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "small.csv")
    done = run("export", "small.csv", "-o", "x.csv")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("Wrote x.csv: csv, ")
    back = done.err.splitlines()[-1]
    assert back == "Back to a trace: tracekit import x.csv --n-expert 8 --n-layer 2 -o x.trace"
    assert run(*back.split()[5:]).code == 0
    assert (
        run("replay", "x.trace", "--format", "csv").out
        == run("replay", "small.csv", "--format", "csv").out
    )


@pytest.mark.parametrize(
    ("output", "format", "sentence"),
    [
        (
            "x.pdf",
            None,
            "does not say which format to write; end it in one of .csv, .parquet, .npz, .oracleGeneral.bin",
        ),
        ("x.csv", "cvs", "No format to write is called 'cvs'; did you mean 'csv'?"),
        ("small.csv", None, "exists; use --force to overwrite it, or another name."),
        (".", "csv", "is a folder; name a file to write."),
        ("none/x.csv", None, "there is no folder"),
    ],
)
def test_a_wrong_output_is_refused(output, format, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "small.csv")
    how = [] if format is None else ["--format", format]
    done = run("export", "small.csv", "-o", output, *how)
    assert done.code == 2
    assert sentence in done.err
    assert sorted(os.listdir()) == ["small.csv"]


def test_a_file_is_replaced_with_force_only_and_never_the_trace(tmp_path):
    small, target = write_csv(tmp_path / "small.csv"), tmp_path / "x.csv"
    target.write_text("old")
    with pytest.raises(UsageError, match=r"exists; use force"):
        tracekit.export(small, target)
    assert target.read_text() == "old"
    assert run("export", small, "-o", target, "--force").code == 0
    assert target.read_text() != "old"
    done = run("export", small, "-o", small, "--force")
    assert done.code == 2
    assert "is what the result is made from" in done.err


def test_what_fails_leaves_nothing(tmp_path, monkeypatch):
    trace = varied()
    target = tmp_path / "x.npz"
    target.write_text("old")

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(arrays, "_write", full)
    with pytest.raises(TracekitError, match="the disk is full"):
        tracekit.export(trace, target, force=True)
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["x.npz"]


def test_a_trace_without_a_routing_is_refused(tmp_path):
    trace = make_trace()
    empty = Trace.from_tables(trace.facts, trace.layers, trace.table(ROUTING_FILE).slice(0, 0))
    with pytest.raises(TraceError, match="has no routing, so there is nothing to export"):
        tracekit.export(empty, tmp_path / "x.csv")


def test_the_command_knows_every_format():
    assert tuple(each.name for each in EXPORTS) == FORMATS


@pytest.mark.parametrize("each", [e for e in EXPORTS if e.endings], ids=lambda e: e.name)
def test_an_ending_means_its_format(each):
    for ending in each.endings:
        assert type(format_of(Path(f"X{ending.upper()}"))) is each
