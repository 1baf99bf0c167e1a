"""Traces too large to hold: read in pieces, with the same figures and the same sentences."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_helpers import run
from families import slow_unless
from recorded_runs import with_residency

from tracekit.formats.source import Source, write_source
from tracekit.routing.cut import cut_pass, whole_decode_rows
from tracekit.routing.residency import recorded_rates
from tracekit.routing.turns import DecodedTurns
from tracekit.trace import (
    Trace,
    TraceError,
    describe,
    pages,
    passes,
    routings,
    rows,
    synthesize,
    write_trace,
)
from tracekit.trace.chunks import Routings
from tracekit.trace.file_rows import FileRows
from tracekit.trace.schema import DECODE, FACTS_FILE, PREFILL, ROUTING_FILE, STEPS_FILE

COLUMNS = ["turn", "pass", "phase", "step", "layer", "experts"]


@pytest.fixture(scope="module")
def made():
    return synthesize(4, 8, 2, 9, n_turns=3, prefill=5, seed=2, dense_layers=1)


@pytest.fixture(scope="module")
def good(made, tmp_path_factory):
    """A trace whose row groups of 5 rows cut its passes, as a foreign tool may write them."""
    path = tmp_path_factory.mktemp("large") / "good.trace"
    write_trace(made, path)
    pq.write_table(pq.read_table(path / ROUTING_FILE), path / ROUTING_FILE, row_group_size=5)
    return path


@pytest.fixture
def in_pieces(monkeypatch):
    """Treat every trace as one that is too large to hold."""
    monkeypatch.setattr(routings, "CHECKED_ROWS", 7)
    monkeypatch.setattr(rows, "BLOCK_BYTES", 30)
    return lambda path: Trace.open(path, most_bytes_checked=0)


def everything(path, opened):
    """Open a trace and read all that it has; return what refused it, or nothing."""
    try:
        trace = opened(path)
        for _ in trace.iter_routing(trace.rows(ROUTING_FILE).schema.names):
            pass
    except TraceError as error:
        return str(error)
    return None


def test_no_column_is_held_of_a_large_trace(good, in_pieces, made):
    trace = in_pieces(good)
    columns = trace._routing.columns
    assert not any(columns.holds([name]) for name in COLUMNS)
    assert len(list(trace.iter_routing(["experts"]))) > 5
    assert not columns.holds(["experts"])
    for name, values in trace.routing(COLUMNS).items():
        np.testing.assert_array_equal(values, made.routing([name])[name])
        assert values.dtype == made.routing([name])[name].dtype
    assert columns.holds(COLUMNS)


def test_the_figures_are_the_same_in_pieces(good, in_pieces, made):
    trace, whole = in_pieces(good), Trace.open(good)
    assert describe(trace) == describe(whole)
    assert trace.digest == whole.digest == made.digest
    for name in vars(whole.passes):
        np.testing.assert_array_equal(getattr(trace.passes, name), getattr(made.passes, name))
    assert DecodedTurns.of(trace).tokens.tolist() == DecodedTurns.of(made).tokens.tolist()
    places = made.routing(COLUMNS)
    for phase in (None, PREFILL, DECODE):
        wanted = slice(None) if phase is None else places["phase"] == phase
        blocks = list(trace.iter_routing(COLUMNS, phase=phase))
        for name in COLUMNS:
            found = np.concatenate([block[name] for block in blocks])
            np.testing.assert_array_equal(found, places[name][wanted])


def test_recorded_hit_rates_are_the_same_in_pieces(tmp_path, monkeypatch):
    trace = synthesize(3, 8, 2, 9, n_turns=2, prefill=5)
    found = np.random.default_rng(0).integers(0, 2, (trace.n_rows, 2)).astype(np.uint8)
    trace = with_residency(trace, found, None)
    path = tmp_path / "x.trace"
    write_trace(trace, path)
    whole = recorded_rates(trace)
    assert 0 < whole["recorded_lookups_decode"] < whole["recorded_lookups"]
    pq.write_table(pq.read_table(path / ROUTING_FILE), path / ROUTING_FILE, row_group_size=4)
    monkeypatch.setattr(rows, "BLOCK_BYTES", 30)
    assert recorded_rates(Trace.open(path)) == whole


@pytest.mark.parametrize("column", slow_unless(COLUMNS, "experts", "pass"))
def test_a_wrong_value_is_refused_in_the_same_words(good, tmp_path, in_pieces, column):
    bad = shutil.copytree(good, tmp_path / "bad.trace")
    table = pq.read_table(good / ROUTING_FILE)
    at, field = table.schema.get_field_index(column), table.schema.field(column)
    for row in (2, 19, 40):
        values = table[column].to_pylist()
        values[row] = [values[row][0]] * 2 if column == "experts" else values[row] + 100
        changed = table.set_column(at, field, pa.array(values, field.type))
        pq.write_table(changed, bad / ROUTING_FILE, row_group_size=5)
        refused = everything(bad, Trace.open)
        assert refused is not None
        in_parts = everything(bad, in_pieces)
        assert in_parts is not None
        # A wrong turn or pass is two faults, and a piece may end between them.
        assert in_parts == refused or (column in ("turn", "pass") and row == 19)


def test_a_prompt_that_lacks_routings_is_named_in_pieces(good, tmp_path, in_pieces):
    bad = shutil.copytree(good, tmp_path / "bad.trace")
    table = pq.read_table(good / ROUTING_FILE)
    at = int(np.flatnonzero(np.array(table["pass"]) == table["pass"][-1].as_py() - 3)[2])
    kept = pa.concat_tables([table.slice(0, at), table.slice(at + 1)])
    pq.write_table(kept, bad / ROUTING_FILE, row_group_size=5)
    whole, pieces = Trace.open(bad), in_pieces(bad)
    assert "routing" in whole.warnings[0]
    assert pieces.warnings == whole.warnings


def test_the_pass_that_a_kill_cut_is_known_without_its_rows(good, tmp_path, in_pieces):
    cut = shutil.copytree(good, tmp_path / "cut.trace")
    facts = json.loads((cut / FACTS_FILE).read_text())
    (cut / FACTS_FILE).write_text(json.dumps(facts | {"complete": False}))
    table = pq.read_table(good / ROUTING_FILE)
    assert cut_pass(in_pieces(cut)) is None
    pq.write_table(table.slice(0, table.num_rows - 1), cut / ROUTING_FILE, row_group_size=5)
    trace = in_pieces(cut)
    assert cut_pass(trace) == table["pass"][-1].as_py()
    assert DecodedTurns.of(trace).tokens.sum() * 3 == len(whole_decode_rows(trace))


# ---- the digest that is kept --------------------------------------------------------------------


def test_a_finished_trace_carries_its_digest(made, tmp_path, monkeypatch):
    path = tmp_path / "x.trace"
    write_trace(made, path)
    kept = json.loads((path / FACTS_FILE).read_text())["digest"]
    assert kept["sha256"] == made.digest
    assert kept["routing_bytes"] == (path / ROUTING_FILE).stat().st_size
    trace = Trace.open(path)
    monkeypatch.setattr(Trace, "computed_digest", lambda self: "computed")
    assert trace.digest == made.digest
    # Of other sizes, or another file, what stands there does not count.
    facts = json.loads((path / FACTS_FILE).read_text())
    facts["model"]["n_expert"] = 9
    (path / FACTS_FILE).write_text(json.dumps(facts))
    assert Trace.open(path).digest == "computed"


def test_a_digest_of_another_file_does_not_count(made, good, monkeypatch):
    monkeypatch.setattr(Trace, "computed_digest", lambda self: "computed")
    assert Trace.open(good).facts.digest.sha256 == made.digest
    assert Trace.open(good).digest == "computed"  # its row groups were written by another tool


@pytest.mark.parametrize("is_known", [True, False])
def test_an_import_takes_the_digest_without_reading_the_trace_back(tmp_path, monkeypatch, is_known):
    path = tmp_path / "x.trace"
    # Another NaN than numpy's own, and weights of which none is known, for which no column stays.
    unknown = np.frombuffer(np.uint32(0x7FC00001).tobytes(), np.float32)[0]

    def chunks():
        for start in range(0, 8, 2):
            step = np.array([start, start + 1], np.int32)
            weights = np.full((2, 2), unknown)
            if is_known and start:
                weights[0] = 0.75, 0.25
            experts = np.array([[3, 1], [0, 2]])
            yield Routings(step * 0, step, step * 0 + 1, step, step * 0, experts, weights=weights)

    with monkeypatch.context() as unread:
        unread.delattr(Trace, "computed_digest")
        write_source(Source("x", chunks(), model={"n_expert": 8}), path)
    trace = Trace.open(path)
    assert trace.has("weights") == is_known
    assert trace.facts.digest.sha256 == trace.computed_digest()


def test_verify_keeps_the_digest_of_an_older_trace(made, tmp_path):
    path = tmp_path / "x.trace"
    write_trace(made, path)
    facts = json.loads((path / FACTS_FILE).read_text())
    written = facts.pop("digest")
    (path / FACTS_FILE).write_text(json.dumps(facts))
    done = run("info", path, "--verify")
    assert done.code == 0
    assert "carries its digest now" in done.err
    assert json.loads((path / FACTS_FILE).read_text())["digest"] == written
    assert "holds what its digest says" in run("info", path, "--verify").err


def test_verify_refuses_files_that_were_changed(made, tmp_path):
    path = tmp_path / "x.trace"
    write_trace(made, path)
    text = (path / FACTS_FILE).read_text()
    (path / FACTS_FILE).write_text(text.replace(made.digest, "0" * 64))
    done = run("info", path, "--verify")
    assert done.code == 3
    assert "they were changed after they were written" in done.err
    (path / FACTS_FILE).write_text(text.replace(made.digest, "0" * 63))
    assert "is no sha256" in run("info", path).err


# ---- files --------------------------------------------------------------------------------------


def test_null_columns_are_known_without_reading_them(made, tmp_path, monkeypatch):
    path = tmp_path / "x.trace"
    write_trace(made, path)
    assert pages.null_columns(path / STEPS_FILE) >= {"wall_ms", "hits", "piece"}
    assert not pages.null_columns(path / ROUTING_FILE) & {"weights", "experts", "pass"}
    assert "residency" in pages.null_columns(path / ROUTING_FILE)
    monkeypatch.setattr("tracekit.trace.file_rows.PROBE_BYTES", 8)
    asked = []
    real = pq.ParquetFile.iter_batches
    monkeypatch.setattr(
        pq.ParquetFile, "iter_batches", lambda *a, **k: counted(asked, real(*a, **k))
    )
    assert not FileRows(path / ROUTING_FILE).has_values("residency")
    assert len(asked) < 5  # and not one for every few rows


def counted(asked, batches):
    for batch in batches:
        asked.append(len(batch))
        yield batch


@pytest.mark.slow  # two hundred pieces
def test_row_groups_grow_with_a_stream(tmp_path, monkeypatch):
    monkeypatch.setattr(passes, "GROUP_TOKENS", 4)
    monkeypatch.setattr(passes, "MOST_GROUPS", 4)
    monkeypatch.setattr(passes, "LEAST_GROUP_BYTES", 1)
    rng = np.random.default_rng(0)
    path = tmp_path / "x.trace"

    def chunks():
        for start in range(0, 400, 2):
            step = np.repeat([start, start + 1], 3)
            experts = rng.permuted(np.tile(np.arange(8), (6, 1)), axis=1)[:, :2]
            layer = np.tile(np.arange(3), 2)
            yield Routings(step * 0, step, step * 0 + 1, step, layer, experts)

    write_source(Source("x", chunks(), model={"n_expert": 8}), path)
    ends = FileRows(path / ROUTING_FILE).group_ends
    sizes = np.diff(np.append(0, ends))
    assert sizes[0] == 12
    assert sizes.max() > 200
    assert len(sizes) < 25
    assert Trace.open(path).n_rows == 1200
