"""Nothing is allocated by the value of an input, and a small file does not fill the memory."""

import gzip
import io
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_helpers import csv_lines, write_csv
from mutations import SENTENCE

from tracekit import analysis, replay
from tracekit.formats import open_any
from tracekit.plots.kinds import KINDS, Choices
from tracekit.predictors.learning.token_counts import DENSE_IDS, TokenCounts
from tracekit.report.pictures import draw
from tracekit.trace import Trace, TracekitError, limits, synthesize, write_trace
from tracekit.trace.pages import DamagedError, Thrift, opened
from tracekit.trace.schema import LAYERS_FILE, STEPS_FILE, steps_schema

MOST = np.iinfo(np.int32).max


@pytest.fixture
def trace(tmp_path) -> Path:
    path = tmp_path / "run.trace"
    write_trace(synthesize(2, 4, 2, 20), path)
    return path


def sentence_of(work) -> str:
    with pytest.raises(TracekitError) as error:
        work()
    assert SENTENCE.fullmatch(str(error.value)), str(error.value)
    return str(error.value)


# ---- values -------------------------------------------------------------------------------------


def with_turn(turn: int) -> list[str]:
    lines = csv_lines(turns=2)
    head = lines.index(next(line for line in lines if line.startswith("turn,"))) + 1
    return lines[:head] + [f"{turn}{row[1:]}" if row[0] == "1" else row for row in lines[head:]]


@pytest.mark.parametrize("turn", [2_000_000_000, MOST])
def test_the_number_of_a_turn_may_be_anything(turn, tmp_path):
    first = open_any(write_csv(tmp_path / "a.csv", with_turn(1)))
    other = open_any(write_csv(tmp_path / "b.csv", with_turn(turn)))
    policies = ["lru", "belady", "layer-lfu", "bound", "random", "lfu", "ring"]
    expected, found = (replay(each, policies, cache_mib=[4, 9]).frame for each in (first, other))
    assert found.equals(expected)
    for question in (analysis.working_set, analysis.overlap_by_lag, analysis.reuse_distance):
        question(other)


def test_the_number_of_a_token_may_be_anything():
    rng = np.random.default_rng(0)
    token, experts = rng.integers(0, 5, 40).astype(np.int32), rng.integers(0, 4, (40, 2, 1))
    small, large = TokenCounts(2, 2, 4), TokenCounts(2, 2, 4)
    # Some below the limit of the dense table, some at it and above.
    ids = np.array([7, DENSE_IDS - 1, DENSE_IDS, DENSE_IDS + 1, MOST], np.int32)
    for start, fold in ((0, 0), (20, 1)):
        part = slice(start, start + 20)
        small.add(token[part], experts[part], fold)
        large.add(ids[token[part]], experts[part], fold)
    for without in ((), (0,), (1,)):
        expected = small.frequency(token, 1, without)
        assert np.array_equal(large.frequency(ids[token], 1, without), expected)
    assert large.n_ids == small.n_ids


def test_more_experts_than_any_model_has_are_refused(tmp_path):
    lines = csv_lines()
    lines[1] = "# model=a arch=b n_layer=17 n_expert=65536 n_expert_used=2"
    sentence = sentence_of(lambda: open_any(write_csv(tmp_path / "x.csv", lines)))
    assert "17 layers of 65,536 experts are more than the 1,048,576 experts" in sentence


@pytest.mark.slow
def test_layers_far_apart_are_not_drawn(tmp_path):
    lines = csv_lines()
    lines[1] = "# model=a arch=b n_layer=32768 n_expert=8 n_expert_used=2"
    lines[3] = lines[3].replace("layer=1", "layer=32767")
    lines[5:] = [",".join([*(f := row.split(","))[:3], "32767" if f[3] == "1" else "0", *f[4:]])
                 for row in lines[5:]]  # fmt: skip
    path = write_csv(tmp_path / "x.csv", lines)
    timeline = analysis.residency_timeline(open_any(path))
    sentence = sentence_of(lambda: KINDS["timeline"].draw(timeline))
    assert "layers 0 to 32767" in sentence
    assert draw(KINDS["timeline"], open_any(path), Choices(), timeline).lacks == sentence


# ---- files that open into much ------------------------------------------------------------------


@pytest.fixture
def little_memory(monkeypatch):
    """Let a file open into no more than 1 MiB: these files are made in a moment."""
    monkeypatch.setattr(limits, "FREE_BYTES", 1 << 20)


def replaced(path: Path, name: str, values: pa.Array) -> None:
    table = pq.read_table(path)
    at = table.schema.get_field_index(name)
    table = table.set_column(at, name, values)
    pq.write_table(table, path, compression="zstd", store_schema=False)


def many_rows(trace: Path) -> Path:
    schema = pa.schema([field.with_nullable(True) for field in steps_schema()])
    rows = pa.Table.from_arrays([pa.nulls(1 << 15, f.type) for f in schema], schema=schema)
    pq.write_table(rows, trace / STEPS_FILE, compression="zstd")
    return trace / STEPS_FILE


def long_texts(trace: Path) -> Path:
    path = trace / STEPS_FILE
    n_rows = pq.read_metadata(path).num_rows
    index, longest = pa.array([0] * n_rows, pa.int32()), pa.array([b"x" * (1 << 17)])
    replaced(path, "piece", pa.DictionaryArray.from_arrays(index, longest))
    return path


def long_lists(trace: Path) -> Path:
    path = trace / LAYERS_FILE
    n_rows, n = pq.read_metadata(path).num_rows, 1 << 19
    starts = np.array([0, *[n] * n_rows], np.int32)
    replaced(path, "router_matrix", pa.ListArray.from_arrays(starts, np.zeros(n, np.float32)))
    return path


BOMBS = {"rows": many_rows, "texts": long_texts, "lists": long_lists}


@pytest.mark.parametrize("what", BOMBS)
@pytest.mark.usefixtures("little_memory")
def test_a_small_file_that_opens_into_much_is_refused(what, trace):
    path = BOMBS[what](trace)
    sentence = sentence_of(lambda: Trace.open(trace).layer_array(0, "router_matrix"))
    size = path.stat().st_size
    assert sentence.startswith(
        f"{path} is damaged, or made to fill the memory: its {size:,} bytes "
    )
    most = max(1 << 20, 500 * size)
    assert f"open into more than {most:,}" in sentence


# Runs the command line, and prints last the most memory that it had, in KiB.
MEASURED = """
import atexit, sys
from pathlib import Path
from tracekit.cli import main
lines = lambda: Path("/proc/self/status").read_text().splitlines()
atexit.register(lambda: print(next(x for x in lines() if x.startswith("VmHWM")).split()[1]))
main()
"""


@pytest.mark.slow
def test_a_file_that_opens_into_five_gigabytes_takes_no_memory(trace):
    schema = pa.schema([field.with_nullable(True) for field in steps_schema()])
    n_rows = 1 << 20
    nulls = pa.Table.from_arrays([pa.nulls(n_rows, f.type) for f in schema], schema=schema)
    path = trace / STEPS_FILE
    with pq.ParquetWriter(path, schema, compression="zstd", write_statistics=False) as writer:
        for _ in range(70):
            writer.write_table(nulls, row_group_size=n_rows)
    assert path.stat().st_size < 3_000_000
    for command in ("info", "replay", "predict"):
        words = [sys.executable, "-c", MEASURED, command, trace]
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 3
        assert "made to fill the memory" in done.stderr
        assert int(done.stdout) < 400_000


@pytest.mark.usefixtures("little_memory")
def test_a_gzip_file_that_opens_into_much_is_refused(tmp_path):
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress(b"# route_trace v1\n" + bytes(2 << 20)))
    sentence = sentence_of(lambda: open_any(path))
    assert "made to fill the memory" in sentence
    assert sentence.endswith("unpack it with gunzip to look at it.")


def test_a_trace_in_which_nothing_varies_is_read(tmp_path):
    """The file of a model that repeats itself is as small as one can be."""
    n_tokens = 2000
    lines = csv_lines(prefill=1, decode=0)[:5]
    place = [(int(t > 0), t, layer) for t in range(n_tokens) for layer in range(2)]
    lines += [f"0,{p},{t},{n},{s},{s},0.5,1,9" for p, t, n in place for s in range(2)]
    path = tmp_path / "x.csv.gz"
    path.write_bytes(gzip.compress("\n".join([*lines, ""]).encode(), 9))
    write_trace(open_any(path), tmp_path / "x.trace")
    assert open_any(tmp_path / "x.trace").n_decoded == n_tokens - 1


# ---- page headers -------------------------------------------------------------------------------


def test_page_headers_say_what_a_column_opens_into(tmp_path):
    lists = [[1.5, 2.5], None, [], [3.5] * 5]
    table = pa.table({"a": pa.array(lists, pa.list_(pa.float32())), "b": [b"x", b"yy", None, b"x"]})
    pq.write_table(
        table, tmp_path / "x", use_dictionary=["b"], row_group_size=2, compression="zstd"
    )
    one, other = opened(tmp_path / "x", "a")
    assert (one.values, other.values) == (3, 6)  # a null list and an empty one have a place each
    assert one.plain_bytes >= 2 * 4
    assert other.plain_bytes >= 5 * 4
    texts = list(opened(tmp_path / "x", "b"))
    assert [group.dictionary_bytes for group in texts] == [4 + 1 + 4 + 2, 4 + 1]
    assert [group.values for group in texts] == [2, 2]


@pytest.mark.parametrize(
    "data", [b"", b"\x15", b"\x19\xfc\xff\xff\xff\xff\x0f", b"\x1c" * 5000, b"\x18\x7f", b"\x1d\0",
             b"\x16" + b"\xff" * 20],
)  # fmt: skip
def test_bytes_that_are_no_struct_are_refused(data):
    with pytest.raises(DamagedError):
        Thrift(data).struct()


def test_a_cut_footer_is_refused(tmp_path):
    file = io.BytesIO()
    pq.write_table(pa.table({"a": [1]}), file)
    for size in range(0, len(file.getvalue()), 7):
        (tmp_path / "x").write_bytes(file.getvalue()[:size])
        with pytest.raises(DamagedError):
            list(opened(tmp_path / "x", "a"))
