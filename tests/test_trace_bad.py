"""Traces that are not valid: each is refused with one sentence that names place and remedy."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from families import slow_unless
from mutations import mutate, not_one_sentence, refusals, time_limit

from tracekit.trace import Trace, TraceError, synthesize, write_trace
from tracekit.trace.schema import FACTS_FILE, LAYERS_FILE, ROUTING_FILE, STEPS_FILE

N_EMBD = 4


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "good.trace"
    trace = synthesize(
        3, 8, 2, 6, n_turns=2, prefill=3, seed=5, dense_layers=1, logits=True, gate_inputs=True,
        n_embd=N_EMBD,
    )  # fmt: skip
    write_trace(trace, path)
    return path


@pytest.fixture
def trace(good, tmp_path) -> Path:
    """A copy of the trace for a test to damage.

    Pass 0 is turn 0's prompt of 3 tokens: rows 0 to 2 at layer 1, row 3 at layer 2. Passes 1 to 3
    are decoded tokens of two rows each, rows 4 to 9; then comes turn 1, from row 10.
    """
    return Path(shutil.copytree(good, tmp_path / "bad.trace"))


def put(trace: Path, file: str, column: str, row: int, value) -> None:
    """Set one value of a column; of a list, `value` is the whole list."""
    table = pq.read_table(trace / file)
    values = table[column].to_pylist()
    values[row] = value
    array = pa.array(values, table.schema.field(column).type)
    at = table.schema.get_field_index(column)
    field = table.schema.field(column).with_nullable(True)
    pq.write_table(table.set_column(at, field, array), trace / file)


def retype(trace: Path, file: str, column: str, arrow_type) -> None:
    table = pq.read_table(trace / file)
    at = table.schema.get_field_index(column)
    array = pa.array(table[column].to_pylist(), arrow_type)
    pq.write_table(table.set_column(at, column, array), trace / file)


def drop_rows(trace: Path, file: str, *rows: int) -> None:
    table = pq.read_table(trace / file)
    kept = np.setdiff1d(np.arange(table.num_rows), rows)
    pq.write_table(table.take(pa.array(kept)), trace / file)


def swap_rows(trace: Path, file: str, a: int, b: int) -> None:
    table = pq.read_table(trace / file)
    order = np.arange(table.num_rows)
    order[[a, b]] = order[[b, a]]
    pq.write_table(table.take(pa.array(order)), trace / file)


def edit(trace: Path, **changes) -> None:
    """Change ``trace.json``; a key of `model` goes by its name, ... removes it."""
    path = trace / FACTS_FILE
    facts = json.loads(path.read_text())
    for name, value in changes.items():
        where = facts["model"] if name in facts["model"] else facts
        if value is ...:
            del where[name]
        else:
            where[name] = value
    path.write_text(json.dumps(facts))


def cut(trace: Path, file: str, size: int) -> None:
    path = trace / file
    path.write_bytes(path.read_bytes()[:size])


ROUTING, STEPS, LAYERS, FACTS = ROUTING_FILE, STEPS_FILE, LAYERS_FILE, FACTS_FILE
AGAIN = "copy, record or import it again."

BAD = {
    # ---- files
    "no facts": (
        lambda t: (t / FACTS).unlink(),
        "{t} is a directory but no trace: it holds no trace.json; name the directory that "
        "'record' or 'import' wrote.",
    ),
    "empty facts": (
        lambda t: cut(t, FACTS, 0),
        "{t}/trace.json is not valid JSON (Expecting value: line 1 column 1 (char 0)); it is cut "
        "short or damaged: copy it again.",
    ),
    "facts of something else": (
        lambda t: (t / FACTS).write_text("[1, 2]"),
        "{t}/trace.json does not describe a trace: it names no tracekit schema.",
    ),
    "newer schema": (
        lambda t: edit(t, schema="tracekit.trace/4"),
        "{t}/trace.json has schema version 4, newer than the 3 that this tracekit reads; upgrade "
        "tracekit.",
    ),
    "schema without a number": (
        lambda t: edit(t, schema="tracekit.trace/new"),
        "{t}/trace.json: schema 'tracekit.trace/new' has no version number.",
    ),
    "facts lack a field": (
        lambda t: edit(t, top_k=...),
        "{t}/trace.json, model lacks 'top_k'; add it.",
    ),
    "facts of another type": (
        lambda t: edit(t, n_expert="eight"),
        "{t}/trace.json, model: n_expert takes a whole number, not 'eight'.",
    ),
    "facts out of range": (
        lambda t: edit(t, n_expert=-8),
        "{t}/trace.json: n_expert = -8 is no size of a model; correct it.",
    ),
    "top_k over n_expert": (
        lambda t: edit(t, top_k=9),
        "{t}/trace.json: top_k = 9 experts of 8 cannot be selected; correct top_k or n_expert.",
    ),
    "groups that do not divide": (
        lambda t: edit(t, n_group=3),
        "{t}/trace.json: 1 of 3 expert groups do not divide 8 experts; correct n_group or "
        "n_group_used.",
    ),
    "unknown gating": (
        lambda t: edit(t, gating="soft"),
        "{t}/trace.json: gating 'soft' is none of softmax, sigmoid, logits, sqrt-softplus; "
        "correct it.",
    ),
    "a file is missing": (
        lambda t: (t / STEPS).unlink(),
        "{t}/steps.parquet is missing; a trace is complete in itself: copy the whole directory "
        "again.",
    ),
    "truncated parquet": (
        lambda t: cut(t, ROUTING, 2000),
        "{t}/routing.parquet is cut short or damaged (Parquet magic bytes not found in footer. "
        "Either the file is corrupted or this is not a parquet file); " + AGAIN,
    ),
    "empty parquet": (
        lambda t: cut(t, LAYERS, 0),
        "{t}/layers.parquet is cut short or damaged (Parquet file size is 0 bytes); " + AGAIN,
    ),
    "facts with a value that is not finite": (
        lambda t: edit(t, norm_eps=float("nan")),
        "{t}/trace.json: NaN is no finite number; correct it, or record the trace again.",
    ),
    "facts with a huge number": (
        lambda t: edit(t, file_bytes=10**4000),
        "{t}/trace.json, model: file_bytes takes a whole number, not "
        "10000000000000000000000000000000000000000000000000000000000….",
    ),
    "facts with a number of too many digits": (
        lambda t: (t / FACTS).write_text('{"schema": ' + "1" * 5000 + "}"),
        "{t}/trace.json is not valid JSON (a number has too many digits); it is cut short or "
        "damaged: copy it again.",
    ),
    "facts nested too deeply": (
        lambda t: (t / FACTS).write_text("[" * 100_000),
        "{t}/trace.json is not valid JSON (it is nested too deeply); it is cut short or damaged: "
        "copy it again.",
    ),
    "facts without a model": (
        lambda t: edit(t, model=...),
        "{t}/trace.json, model: a JSON object is missing; record or import the trace again.",
    ),
    "engine that is no object": (
        lambda t: edit(t, engine=7),
        "{t}/trace.json, engine: a JSON object is missing; record or import the trace again.",
    ),
    # ---- columns
    "missing column": (
        lambda t: pq.write_table(pq.read_table(t / ROUTING).drop(["step"]), t / ROUTING),
        "{t}/routing.parquet lacks the column 'step' (int32); it is not of a trace, or of a "
        "damaged one: record or import it again.",
    ),
    "wrong column type": (
        lambda t: retype(t, ROUTING, "step", pa.int64()),
        "{t}/routing.parquet, column step: its type is int64, but this model's trace needs int32; "
        "write the column with that type, or correct trace.json.",
    ),
    "wrong list width": (
        lambda t: edit(t, top_k=3),
        "{t}/routing.parquet, column experts: its type is fixed_size_list<element: uint16>[2], "
        "but this model's trace needs fixed_size_list<item: uint16>[3]; write the column with "
        "that type, or correct trace.json.",
    ),
    "wrong width of logits": (
        lambda t: edit(t, n_expert=16),
        "{t}/routing.parquet, column logits: its type is fixed_size_list<element: float>[8], "
        "but this model's trace needs fixed_size_list<item: float>[16]; write the column with "
        "that type, or correct trace.json.",
    ),
    "lists of any width": (
        lambda t: retype(t, ROUTING, "experts", pa.list_(pa.uint16())),
        "{t}/routing.parquet, column experts: its type is list<element: uint16>, but this "
        "model's trace needs fixed_size_list<item: uint16>[2]; write the column with that type, "
        "or correct trace.json.",
    ),
    "gate inputs of unknown width": (
        lambda t: edit(t, n_embd=None),
        "{t}/routing.parquet has gate inputs, but trace.json does not give the model's n_embd; "
        "add it.",
    ),
    # ---- values
    "null step": (
        lambda t: put(t, ROUTING, "step", 5, None),
        "{t}/routing.parquet, row 5, column step: it is null; write its value.",
    ),
    "null expert": (
        lambda t: put(t, ROUTING, "experts", 5, [3, None]),
        "{t}/routing.parquet, row 5, column expert, slot 1: it is null; write the expert.",
    ),
    "expert out of range": (
        lambda t: put(t, ROUTING, "experts", 5, [3, 8]),
        "{t}/routing.parquet, row 5, column expert, slot 1: expert 8 is not below the model's "
        "n_expert = 8; correct the row or n_expert.",
    ),
    "duplicate expert": (
        lambda t: put(t, ROUTING, "experts", 5, [3, 3]),
        "{t}/routing.parquet, row 5, column expert: expert 3 stands twice in one routing (slots 0 "
        "and 1); a token selects distinct experts: correct or record it again.",
    ),
    "negative weight": (
        lambda t: put(t, ROUTING, "weights", 5, [0.5, -0.5]),
        "{t}/routing.parquet, row 5, column weight, slot 1: -0.5 is no routing weight; it is a "
        "finite number from 0 up, or null (nan in a CSV) if unknown.",
    ),
    "unknown residency": (
        lambda t: put(t, ROUTING, "residency", 5, [0, 3]),
        "{t}/routing.parquet, row 5, column residency, slot 1: 3 is not 0 (miss), 1 (hit) or 2 "
        "(prefetched), nor null.",
    ),
    "unknown dropped": (
        lambda t: put(t, ROUTING, "dropped", 5, [2, 0]),
        "{t}/routing.parquet, row 5, column dropped, slot 0: 2 is not 0 or 1, nor null.",
    ),
    "NaN logits": (
        lambda t: put(t, ROUTING, "logits", 5, [1.0, float("nan"), *[0.0] * 6]),
        "{t}/routing.parquet, row 5 (turn 0, step 3, layer 2), column logits: value 1 is nan, not a "
        "finite number; the recording is damaged or the model computed it: record it again.",
    ),
    "infinite gate input": (
        lambda t: put(t, ROUTING, "gate_input", 5, [0.0, 0.0, float("inf"), 0.0]),
        "{t}/routing.parquet, row 5 (turn 0, step 3, layer 2), column gate_input: value 2 is inf, "
        "not a finite number; the recording is damaged or the model computed it: record it again.",
    ),
    "negative turn": (
        lambda t: put(t, ROUTING, "turn", 0, -1),
        "{t}/routing.parquet, row 0, column turn: -1 is negative; a turn counts from 0: correct "
        "or record it again.",
    ),
    "unknown phase": (
        lambda t: put(t, ROUTING, "phase", 5, 7),
        "{t}/routing.parquet, row 5, column phase: 7 is neither 0 (prefill) nor 1 (decode).",
    ),
    "layer out of range": (
        lambda t: put(t, ROUTING, "layer", 5, 3),
        "{t}/routing.parquet, row 5, column layer: 3 is no layer of a model with 3 of them (0 to "
        "2); correct the row or the model's n_layer.",
    ),
    # ---- order and gaps
    "passes out of order": (
        lambda t: swap_rows(t, ROUTING, 5, 6),
        "{t}/routing.parquet, row 6, column pass: 1 follows 2; rows stand in (pass, layer, step) "
        "order: sort them.",
    ),
    "layers out of order": (
        lambda t: swap_rows(t, ROUTING, 4, 5),
        "{t}/routing.parquet, row 5: the routing of turn 0, step 3, layer 1 is out of (pass, "
        "layer, step) order: sort the rows.",
    ),
    "pass of two turns": (
        lambda t: put(t, ROUTING, "turn", 5, 1),
        "{t}/routing.parquet, row 6, column turn: 0 follows 1; rows stand in (pass, layer, step) "
        "order: sort them.",
    ),
    "pass of two phases": (
        lambda t: put(t, ROUTING, "phase", 5, 0),
        "{t}/routing.parquet, row 5, column phase: pass 1 has phase 1 and 0; a pass belongs to "
        "one phase: number the passes anew.",
    ),
    "decode pass whose layers have other tokens": (
        lambda t: put(t, ROUTING, "step", 5, 4),
        "{t}/routing.parquet, row 4: the decode pass of turn 0, step 4 lacks layer 1, which other "
        "passes route; rows are missing: record it again.",
    ),
    "decode pass lacks a layer": (
        lambda t: drop_rows(t, ROUTING, 7),
        "{t}/routing.parquet, row 6: the decode pass of turn 0, step 4 lacks layer 2, which other "
        "passes route; rows are missing: record it again.",
    ),
    "gap in the routings": (
        lambda t: drop_rows(t, ROUTING, 6, 7),
        "{t}/routing.parquet, row 6: turn 0 goes from step 3 to step 5; the steps of a turn "
        "follow each other without a gap: rows are missing or doubled, record it again.",
    ),
    "gap in the steps": (
        lambda t: drop_rows(t, STEPS, 1),
        "{t}/steps.parquet, row 1, column step: turn 0 goes from step 0 to step 2 within pass 0; "
        "the steps of a pass follow each other: rows are missing or doubled, record it again.",
    ),
    "gap in the passes": (
        lambda t: drop_rows(t, STEPS, 5),
        "{t}/steps.parquet, row 5: turn 1, pass 4 follows turn 0, pass 2; passes count up by one: "
        "rows are missing.",
    ),
    "steps end early": (
        lambda t: drop_rows(t, STEPS, 11),
        "{t}/steps.parquet lacks pass 7, which the routings have; the files are of different "
        "recordings or one was cut: copy the trace again.",
    ),
    "routings end early": (
        lambda t: drop_rows(t, ROUTING, 18, 19),
        "{t}/steps.parquet has decode pass 7, for which no routing is recorded; rows of the "
        "routings are missing: copy or record the trace again.",
    ),
    "steps of another turn": (
        lambda t: [put(t, STEPS, "turn", row, 2) for row in range(6, 12)],
        "{t}/steps.parquet, row 6: pass 4 has another turn, phase or steps here than in the "
        "routings; the files are of different recordings: copy the trace again.",
    ),
    "negative time": (
        lambda t: put(t, STEPS, "wall_ms", 4, -2.5),
        "{t}/steps.parquet, row 4, column wall_ms: -2.5 is no amount; it is a finite number from "
        "0 up, or null if unknown.",
    ),
    "negative count": (
        lambda t: put(t, STEPS, "hits", 4, -2),
        "{t}/steps.parquet, row 4, column hits: -2 is no amount; it is a finite number from 0 up, "
        "or null if unknown.",
    ),
    # ---- layers
    "layer twice": (
        lambda t: put(t, LAYERS, "layer", 2, 1),
        "{t}/layers.parquet, row 2, column layer: layer 1 stands twice; remove one.",
    ),
    "size of nothing": (
        lambda t: put(t, LAYERS, "expert_bytes", 1, 0),
        "{t}/layers.parquet, row 1, column expert_bytes: 0 bytes is no size of layer 1; give its "
        "true size, or null if it is not known.",
    ),
    "huge size": (
        lambda t: put(t, LAYERS, "expert_bytes", 1, 1 << 50),
        "{t}/layers.parquet, row 1, column expert_bytes: 1125899906842624 bytes is no size of "
        "layer 1; give its true size, or null if it is not known.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_traces_are_refused_with_one_sentence(trace, case):
    damage, sentence = BAD[case]
    damage(trace)
    with pytest.raises(TraceError) as caught:
        Trace.open(trace)
    assert str(caught.value) == sentence.format(t=trace)
    assert caught.value.exit_code == 3


def test_the_trace_that_the_bad_ones_are_made_of_is_valid(trace):
    assert Trace.open(trace).n_rows == 20
    put(trace, ROUTING, "residency", 5, [2, 1])
    put(trace, ROUTING, "weights", 5, [None, 0.5])
    put(trace, LAYERS, "dense_bytes", 0, 0)
    Trace.open(trace)


def test_a_bad_trace_opens_without_validation(trace):
    put(trace, ROUTING, "experts", 5, [3, 3])
    assert Trace.open(trace, validate=False).n_rows == 20


def test_a_missing_size_is_refused_when_it_is_asked_for(trace):
    put(trace, LAYERS, "expert_bytes", 2, None)
    opened = Trace.open(trace)
    with pytest.raises(TraceError, match="how many bytes an expert of layer 2 has"):
        _ = opened.expert_bytes


def test_columns_too_large_to_check_on_open_are_checked_as_they_are_read(trace):
    put(trace, ROUTING, "logits", 5, [1.0, float("nan"), *[0.0] * 6])
    opened = Trace.open(trace, most_bytes_checked=100)
    for read in (opened.routing, lambda columns: list(opened.iter_routing(columns))):
        with pytest.raises(
            TraceError, match=r"row 5 \(turn 0, step 3, layer 2\), column logits: value 1 is nan"
        ):
            read(["logits"])


def test_embeddings_are_checked_as_they_are_read(trace):
    put(trace, STEPS, "embedding", 4, [0.0, float("nan"), 0.0, 0.0])
    opened = Trace.open(trace)
    with pytest.raises(TraceError, match=r"steps.parquet, row 4, column embedding: value 1 is nan"):
        opened.steps(["embedding"])


@pytest.mark.parametrize(
    ("name", "values", "what"),
    [
        ("router_matrix", [1.0] * 31, "layer 1 has 31 values where 8 × 4 are needed"),
        ("router_matrix", [float("nan")] * 32, "value 0 of layer 1 is nan"),
        ("norm_weight", [1.0] * 5, "layer 1 has 5 values where 4 are needed"),
        ("selection_bias", [1.0] * 7, "layer 1 has 7 values where 8 are needed"),
    ],
)
def test_arrays_of_a_layer_are_checked_as_they_are_read(trace, name, values, what):
    put(trace, LAYERS, name, 1, values)
    opened = Trace.open(trace)
    with pytest.raises(TraceError, match=what):
        opened.layer_array(1, name)


def test_a_file_is_no_trace_directory(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(TraceError, match="is a file; a trace is a directory"):
        Trace.open(file)


@pytest.mark.parametrize("file", [ROUTING_FILE, STEPS_FILE, LAYERS_FILE])
@pytest.mark.parametrize("value", slow_unless(["mine", {"a": 1}, None, [1, 2]], {"a": 1}), ids=repr)
def test_foreign_columns_are_passed_over(trace, good, tmp_path, file, value):
    table = pq.read_table(trace / file)
    pq.write_table(table.append_column("mine", pa.array([value] * len(table))), trace / file)
    opened = Trace.open(trace)
    assert opened.digest == Trace.open(good).digest
    write_trace(opened, tmp_path / "copy.trace")
    assert Trace.open(tmp_path / "copy.trace").digest == opened.digest


@pytest.mark.parametrize("column", ["turn", "logits", "gate_input"])
def test_a_column_that_stands_twice_is_refused(trace, column):
    table = pq.read_table(trace / ROUTING_FILE)
    pq.write_table(table.append_column(column, table[column]), trace / ROUTING_FILE)
    with pytest.raises(TraceError, match=f"has two columns called '{column}'; remove one"):
        Trace.open(trace)


@pytest.mark.parametrize("file", [FACTS, ROUTING, STEPS, LAYERS])
@pytest.mark.parametrize("seed", slow_unless(range(3), 0))
def test_a_mutated_trace_is_read_or_refused(trace, file, seed):
    rng = random.Random(f"{file} {seed}")
    assert refusals(trace) == []
    original = (trace / file).read_bytes()
    refused = []
    for _ in range(30):
        (trace / file).write_bytes(mutate(original, rng))
        refused += refusals(trace)
    assert len(refused) > 15
    assert not_one_sentence(refused) == []


@pytest.mark.parametrize("file", [ROUTING, STEPS, LAYERS])
def test_a_pipe_in_place_of_a_file_is_refused_without_waiting(trace, file):
    (trace / file).unlink()
    os.mkfifo(trace / file)
    with time_limit(10), pytest.raises(TraceError, match=f"{file} is no file; copy, record or imp"):
        Trace.open(trace)


@pytest.mark.parametrize("n_tokens", [2, 6, 4000])
def test_a_trace_that_another_one_replaces_is_not_read_as_both(trace, n_tokens):
    opened = Trace.open(trace)
    routing, steps = opened.rows(ROUTING_FILE), opened.rows(STEPS_FILE)
    write_trace(synthesize(3, 8, 2, n_tokens, seed=6), trace, force=True)
    refused = r"\.parquet was changed while it was read; read the trace again\.$"
    with pytest.raises(TraceError, match=refused):
        routing.read(["layer"])
    with pytest.raises(TraceError, match=refused):
        steps.has_values("step")
