"""Columns that are null as a whole are left out of a trace; files of one run carry the same ones."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit.formats import ImportOptions, import_any, open_any
from tracekit.replaying import replay
from tracekit.trace import Trace, TraceError, write_trace
from tracekit.trace.schema import MAY_BE_ABSENT, ROUTING_FILE, routing_schema

OPTIONS = ImportOptions(expert_mib=1)


def csv_lines(*further: str, turns: int = 1, tokens: int = 5) -> str:
    """Return a table of two layers and two experts; `further`: columns as `name=value`."""
    names = [each.partition("=")[0] for each in further]
    values = [each.partition("=")[2] for each in further]
    rows = [",".join(["prompt", "token", "layer", "expert", *names])]
    for turn in range(turns):
        for token in range(tokens):
            for layer in (0, 1):
                for expert in (token % 3, 3):
                    rows.append(",".join([*map(str, (turn, token, layer, expert)), *values]))
    return "\n".join(rows) + "\n"


def imported(tmp_path: Path, text: str) -> Path:
    (tmp_path / "run.csv").write_text(text)
    path = tmp_path / "run.trace"
    import_any(tmp_path / "run.csv", path, OPTIONS, force=True)
    return path


def columns_of(path: Path) -> list[str]:
    names: list[str] = pq.ParquetFile(path / ROUTING_FILE).schema_arrow.names
    return names


@pytest.mark.parametrize(
    ("further", "kept"),
    [
        ((), ()),
        (("weight=0.5",), ("weights",)),
        (("residency=hit",), ("residency",)),
        (("dropped=0",), ("dropped",)),
        (("weight=", "residency="), ()),  # the columns are there, and empty
        (("weight=nan", "dropped=1"), ("dropped",)),
    ],
)
def test_what_is_null_as_a_whole_is_left_out(
    tmp_path: Path, further: tuple[str, ...], kept: tuple[str, ...]
) -> None:
    path = imported(tmp_path, csv_lines(*further))
    in_memory = open_any(tmp_path / "run.csv", options=OPTIONS)
    assert [n for n in columns_of(path) if n in MAY_BE_ABSENT] == list(kept)
    assert in_memory.rows(ROUTING_FILE).schema.names == columns_of(path)
    trace = Trace.open(path)
    assert trace.digest == in_memory.digest
    for name in MAY_BE_ABSENT:
        values = trace.routing([name])[name]
        assert values.shape == trace.routing(["experts"])["experts"].shape
        assert trace.has(name) == (name in kept)
        if name not in kept:
            assert (np.isnan(values) if name == "weights" else values == 255).all()


def test_a_trace_that_has_them_null_is_read_as_the_one_without(tmp_path: Path) -> None:
    path = imported(tmp_path, csv_lines(turns=2))
    trace = Trace.open(path)
    schema = routing_schema(trace.top_k)
    table = trace.table(ROUTING_FILE)
    for name in MAY_BE_ABSENT:
        nulls = pa.nulls(len(table) * trace.top_k, schema.field(name).type.value_type)
        lists = pa.FixedSizeListArray.from_arrays(nulls, trace.top_k)
        table = table.append_column(schema.field(name), lists)
    whole = Trace.from_tables(trace.facts, trace.layers, table.select(schema.names))
    write_trace(whole, tmp_path / "whole.trace")
    again = Trace.open(tmp_path / "whole.trace")
    assert columns_of(tmp_path / "whole.trace") == schema.names
    assert again.digest == trace.digest
    for one, other in zip(
        replay(trace, ["lru", "bound"], cache_fraction=0.5).rows,
        replay(again, ["lru", "bound"], cache_fraction=0.5).rows,
        strict=True,
    ):
        assert one.to_record() == other.to_record()
    blocks = [block["dropped"] for block in trace.iter_routing(["dropped"])]
    assert (np.concatenate(blocks) == 255).all()


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_column_that_only_some_files_carry_is_refused(tmp_path: Path, first: str) -> None:
    texts = {"a": csv_lines("weight=0.5"), "b": csv_lines()}
    names = [first, *(texts.keys() - {first})]
    files = [tmp_path / f"{name}.csv" for name in names]
    for name, file in zip(names, files, strict=True):
        file.write_text(texts[name])
    sentence = f"{tmp_path / 'a.csv'} has weights and {tmp_path / 'b.csv'} has not; "
    for read in (
        lambda: open_any(files),
        lambda: import_any(files, tmp_path / "x.trace", OPTIONS),
    ):
        with pytest.raises(TraceError) as refused:
            read()
        assert str(refused.value).startswith(sentence)
    assert not (tmp_path / "x.trace").exists()


def test_files_that_carry_the_same_are_one_run(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.csv" for name in "ab"]
    for file in files:
        file.write_text(csv_lines("weight=0.5"))
    trace = open_any(files)
    assert trace.n_turns == 2
    assert trace.has("weights")


def test_lines_of_json_may_lack_a_weight_here_and_there(tmp_path: Path) -> None:
    lines = []
    for token in range(6):
        row = {"token": token, "layer": 0, "experts": [token % 3, 3], "weights": [0.6, 0.4]}
        if token == 3:
            row["weights"] = [None, None]
        lines.append(json.dumps(row))
    path = tmp_path / "run.jsonl"
    path.write_text("\n".join(lines) + "\n")
    weights = open_any(path).routing(["weights"])["weights"]
    assert np.isnan(weights).all(axis=1).tolist() == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("was", "is_now", "sentence"),
    [
        ("\n0,0,", "\n0,5000000000,", "column step: 5000000000 is no whole number from 0 to"),
        (",1,", ",70000,", "column layer: 70000 is no whole number from 0 to 32767"),
        (",3\n", ",5000000000\n", "column expert: 5000000000 is no whole number from 0 to 65535"),
    ],
)
def test_a_number_that_is_too_wide_is_named_as_it_stands(
    tmp_path: Path, was: str, is_now: str, sentence: str
) -> None:
    text = csv_lines(tokens=1)
    assert was in text
    (tmp_path / "run.csv").write_text(text.replace(was, is_now))
    with pytest.raises(TraceError, match=sentence):
        open_any(tmp_path / "run.csv")
