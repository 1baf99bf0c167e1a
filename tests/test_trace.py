"""Traces opened, read column by column, and made in memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trace_recorder

from tracekit.trace import Trace, TraceError, describe, rows, synthesize, write_trace
from tracekit.trace.passes import GROUP_BYTES, group_ends, group_rows, pass_starts
from tracekit.trace.schema import DECODE, PREFILL, ROUTING_FILE


@pytest.fixture(scope="module")
def rich():
    return synthesize(
        5, 8, 2, 30, n_turns=3, prefill=6, seed=7, dense_layers=2, logits=True, gate_inputs=True,
        n_embd=16, expert_bytes=[100, 200, 300],
    )  # fmt: skip


@pytest.fixture(scope="module")
def on_disk(rich, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "rich.trace"
    write_trace(rich, path)
    return path


def test_a_written_trace_is_read_again(rich, on_disk):
    opened = Trace.open(on_disk)
    columns = [
        "turn", "pass", "phase", "step", "layer", "experts", "weights", "residency", "dropped",
        "logits", "gate_input",
    ]  # fmt: skip
    before, after = rich.routing(columns), opened.routing(columns)
    for name in columns:
        assert before[name].dtype == after[name].dtype, name
        np.testing.assert_array_equal(before[name], after[name], err_msg=name)
    np.testing.assert_array_equal(
        rich.steps(["embedding"])["embedding"], opened.steps(["embedding"])["embedding"]
    )
    assert opened.facts == rich.facts
    assert opened.digest == rich.digest
    assert opened.warnings == []


def test_sizes(on_disk):
    trace = Trace.open(on_disk)
    assert (trace.n_layer, trace.n_expert, trace.top_k, trace.n_turns) == (5, 8, 2, 3)
    assert trace.n_steps == 30 + 3 * 6
    # The last layer routes only the last token of a prompt.
    assert trace.n_rows == 30 * 3 + 3 * (6 * 2 + 1)
    assert trace.complete
    assert trace.budget_bytes is None
    assert trace.moe_layers.tolist() == [2, 3, 4]
    assert trace.moe_layers.dtype == np.int16
    assert trace.expert_bytes.tolist() == [100, 200, 300]
    assert trace.expert_bytes.dtype == np.int64


def test_a_trace_says_which_columns_have_values(on_disk):
    trace = Trace.open(on_disk)
    assert [c for c in ("experts", "weights", "logits", "gate_input") if not trace.has(c)] == []
    assert [c for c in ("residency", "dropped", "nonsense") if trace.has(c)] == []
    assert trace.has_steps("token")
    assert not trace.has_steps("wall_ms")


def test_nulls_are_read_as_nan_and_special_numbers(on_disk):
    trace = Trace.open(on_disk)
    assert (trace.routing(["residency"])["residency"] == 255).all()
    steps = trace.steps(["wall_ms", "read_bytes", "hits", "piece", "token"])
    assert np.isnan(steps["wall_ms"]).all()
    assert (steps["read_bytes"] == -1).all()
    assert (steps["hits"] == -1).all()
    assert steps["piece"].tolist() == [None] * trace.n_steps
    assert (steps["token"] >= 0).all()


def test_single_unknown_weights_are_nan():
    trace = synthesize(1, 4, 2, 3)
    table = trace.table(ROUTING_FILE)
    weights = pa.array([[0.5, None], None, [0.25, 0.75]], pa.list_(pa.float32(), 2))
    table = table.set_column(table.schema.get_field_index("weights"), "weights", weights)
    read = Trace.from_tables(trace.facts, trace.layers, table).routing(["weights"])["weights"]
    np.testing.assert_array_equal(read, np.float32([[0.5, np.nan], [np.nan] * 2, [0.25, 0.75]]))


def test_blocks_cover_all_rows_and_never_cut_a_decode_pass(on_disk, tmp_path, monkeypatch):
    # Row groups of 4 rows, as a foreign tool may write them, cut through the passes of 3 rows.
    table = pq.read_table(on_disk / ROUTING_FILE)
    ragged = tmp_path / "ragged.trace"
    write_trace(Trace.open(on_disk), ragged)
    pq.write_table(table, ragged / ROUTING_FILE, row_group_size=4)
    trace = Trace.open(ragged)
    columns = ["pass", "phase", "logits"]
    assert len(list(trace.iter_routing(columns))) == 1  # small row groups are read together
    monkeypatch.setattr(rows, "BLOCK_BYTES", 200)
    blocks = list(trace.iter_routing(columns))
    assert len(blocks) > 5
    whole = trace.routing(columns)
    for name in columns:
        np.testing.assert_array_equal(np.concatenate([b[name] for b in blocks]), whole[name])
    seen = [set(b["pass"][b["phase"] == DECODE].tolist()) for b in blocks]
    assert sum(map(len, seen)) == len(set().union(*seen))


@pytest.mark.parametrize("phase", [PREFILL, DECODE])
def test_blocks_of_one_phase(on_disk, phase):
    trace = Trace.open(on_disk)
    whole = trace.routing(["phase", "experts"])
    blocks = list(trace.iter_routing(["phase", "experts"], phase=phase))
    np.testing.assert_array_equal(
        np.concatenate([b["experts"] for b in blocks]), whole["experts"][whole["phase"] == phase]
    )


def test_row_groups_end_with_a_pass_unless_it_is_huge():
    passes = np.repeat([0, 1, 2, 3], [1000, 10, 10, 2000])
    phases = np.repeat([PREFILL, DECODE, DECODE, PREFILL], [1000, 10, 10, 2000])
    starts = pass_starts(passes)
    ends = group_ends(starts, phases[starts], len(passes), 256)
    assert ends[:3] == [256, 512, 768]  # the prompt of 1000 is cut
    assert ends[3] == 1020  # whole decode passes end a group; the next prompt begins one
    assert ends[-1] == len(passes)
    decode = group_ends(np.arange(0, 50, 10), np.ones(5), 50, 1)
    assert decode == [10, 20, 30, 40, 50]  # a row fills a group: still whole passes


def test_a_large_file_has_larger_row_groups():
    assert group_rows(100_000, rows_of_token=48, bytes_of_row=80) == 256 * 48
    assert group_rows(12_500_000, rows_of_token=48, bytes_of_row=80) == 12_500_000 // 64
    assert group_rows(10**9, rows_of_token=48, bytes_of_row=80) == GROUP_BYTES // 80
    assert group_rows(10**9, rows_of_token=1, bytes_of_row=4096) == 256
    assert group_rows(100_000, rows_of_token=48, bytes_of_row=GROUP_BYTES // 3) == 3
    assert group_rows(100_000, rows_of_token=48, bytes_of_row=2 * GROUP_BYTES) == 1


def test_layer_arrays(rich, on_disk):
    trace = Trace.open(on_disk)
    router = trace.layer_array(3, "router_matrix")
    assert router.shape == (8, 16)
    np.testing.assert_array_equal(router, rich.layer_array(3, "router_matrix"))
    assert trace.layer_array(3, "router_bias") is None
    assert trace.layer_array(0, "router_matrix") is None  # a dense layer
    assert trace.layer_array(99, "router_matrix") is None
    assert trace.layer_array(3, "norm_weight").shape == (16,)


def test_half_precision_gate_inputs_come_as_float32(rich):
    table = rich.table(ROUTING_FILE)
    values = rich.routing(["gate_input"])["gate_input"].astype(np.float16)
    half = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), 16)
    at = table.schema.get_field_index("gate_input")
    trace = Trace.from_tables(rich.facts, rich.layers, table.set_column(at, "gate_input", half))
    read = trace.routing(["gate_input"])["gate_input"]
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, values.astype(np.float32))


def test_a_layer_with_experts_that_never_ran_is_no_moe_layer(rich):
    layers = rich.layers.to_pylist()
    layers[0]["expert_bytes"] = 999
    table = pa.Table.from_pylist(layers, rich.layers.schema)
    whole = rich.table(ROUTING_FILE)
    assert Trace.from_tables(rich.facts, table, whole).moe_layers.tolist() == [2, 3, 4]


def test_a_missing_column_is_named(on_disk):
    with pytest.raises(TraceError, match=r"no column 'gates' in its routings; it has: turn, pass"):
        Trace.open(on_disk).routing(["gates"])


def test_steps_follow_from_the_routings(rich):
    table = rich.table(ROUTING_FILE)
    derived = Trace.from_tables(rich.facts, rich.layers, table)
    place = ["turn", "pass", "step", "phase"]
    for name, values in derived.steps(place).items():
        np.testing.assert_array_equal(values, rich.steps(place)[name])
    assert not derived.has_steps("token")


def test_description(on_disk):
    figures = describe(Trace.open(on_disk))
    assert figures["model"]["moe_layers"] == 3
    assert (figures["turns"], figures["passes"]) == (3, 33)
    assert (figures["tokens_prefill"], figures["tokens_decode"]) == (18, 30)
    assert (figures["routings_prefill"], figures["routings_decode"]) == (39, 90)
    assert (figures["expert_bytes_min"], figures["expert_bytes_max"]) == (100, 300)
    assert (figures["bank_bytes"], figures["token_cycle_bytes"]) == (4800, 1200)
    assert "gate_input" in figures["columns"][ROUTING_FILE]


def test_digest_tells_traces_apart(rich):
    assert rich.digest != synthesize(5, 8, 2, 30, n_turns=3, prefill=6, seed=8).digest


def test_reading_and_writing_import_neither_pandas_nor_numba(on_disk, tmp_path):
    code = f"""
import sys
sys.path.append({str(Path(trace_recorder.__file__).parent)!r})
import trace_recorder as recorder
from tracekit.trace import Trace, TraceWriter, describe, write_trace
trace = Trace.open({str(on_disk)!r})
describe(trace)
trace.routing(["weights", "residency", "gate_input"])
trace.steps(["piece", "token", "wall_ms"])
write_trace(trace, {str(tmp_path / "again.trace")!r})
path = {str(tmp_path / "recorded.trace")!r}
writer = TraceWriter(path, recorder.FACTS, top_k=recorder.TOP_K, n_embd=recorder.N_EMBD)
writer.write_pass(*recorder.a_pass(0))
writer.flush()
Trace.open(path)
writer.close()
heavy = [name for name in ("pandas", "numba", "matplotlib") if name in sys.modules]
sys.exit(f"imported {{heavy}}" if heavy else 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_arrays_that_a_trace_keeps_are_read_only(tmp_path):
    write_trace(synthesize(2, 8, 2, 6), tmp_path / "run.trace")
    table = pq.read_table(tmp_path / "run.trace" / "routing.parquet")
    pq.write_table(table, tmp_path / "run.trace" / "routing.parquet", row_group_size=5)
    trace = Trace.open(tmp_path / "run.trace")
    kept = [*trace.routing(["turn", "experts"]).values(), trace.moe_layers]
    for values in (*kept, *trace.layer_columns.values()):
        with pytest.raises(ValueError, match="read-only"):
            values[...] = 0
