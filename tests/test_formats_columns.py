"""Columns of long tables beside the experts: sizes, residency, dropped and rejected tokens."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tracekit.formats import open_any
from tracekit.trace import TraceError

HEADER = "pass,phase,token,layer,expert,expert_bytes,residency,dropped,kept"
ROWS = [
    "0,prefill,0,0,3,100,miss,false,true",
    "0,prefill,0,2,1,,hit,,true",
    "1,decode,1,0,2,100,prefetched,no,",
    "1,decode,1,2,0,250,,yes,false",
]


@pytest.fixture
def write(tmp_path):
    """Give a function that writes the lines of a CSV file and opens it."""

    def open_lines(lines, header=HEADER):
        path = tmp_path / "x.csv"
        path.write_text("\n".join([header, *lines]) + "\n")
        return open_any(path)

    return open_lines


def assert_read(trace):
    assert trace.layer_columns["expert_bytes"].tolist() == [100, -1, 250]
    assert trace.routing(["residency"])["residency"].ravel().tolist() == [0, 1, 2, 255]
    assert trace.routing(["dropped"])["dropped"].ravel().tolist() == [0, 255, 0, 1]
    assert trace.kept.tolist() == [True, False]


def test_words_of_a_csv(write):
    assert_read(write(ROWS))


def test_numbers_of_a_csv(write):
    words = {"miss": 0, "hit": 1, "prefetched": 2, "false": 0, "no": 0, "true": 1, "yes": 1}
    lines = [",".join(str(words.get(each, each)) for each in row.split(",")) for row in ROWS]
    assert_read(write(lines))


def _value(text):
    return int(text) if text.isdecimal() else (text or None)


def test_words_of_json_lines(tmp_path):
    rows = [dict(zip(HEADER.split(","), map(_value, row.split(",")), strict=True)) for row in ROWS]
    path = tmp_path / "x.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert_read(open_any(path))


def test_lists_and_booleans_of_parquet(tmp_path):
    columns = {
        "token": [0, 0, 1, 1],
        "pass": [0, 0, 1, 1],
        "layer": [0, 2, 0, 2],
        "experts": [[3, 1], [1, 0], [2, 3], [0, 1]],
        "residency": [["hit", "miss"], ["hit", None], [None, None], ["miss", "miss"]],
        "dropped": [[False, True], [None, False], [False, False], [True, True]],
        "kept": [True, True, False, False],
    }
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    trace = open_any(tmp_path / "x.parquet")
    assert trace.routing(["residency"])["residency"].tolist() == [
        [1, 0],
        [1, 255],
        [255, 255],
        [0, 0],
    ]
    assert trace.routing(["dropped"])["dropped"].tolist() == [[0, 1], [255, 0], [0, 0], [1, 1]]
    assert trace.kept.tolist() == [True, False]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            "0,prefill,0,2,1,,warm,,true",
            "line 3: residency is neither miss, hit nor prefetched (nor 0, 1 or 2); correct it.",
        ),
        ("0,prefill,0,2,1,,3,,true", "line 3: residency is neither miss, hit"),
        ("0,prefill,0,2,1,,hit,2,true", "line 3: dropped is neither true nor false (nor 1 or 0)"),
        ("0,prefill,0,2,1,,hit,,maybe", "line 3: kept is neither true nor false"),
        ("0,start,0,2,1,,hit,,true", "line 3: phase is neither prefill nor decode"),
        ("0,prefill,0,2,1,big,hit,,true", "line 3, column expert_bytes: 'big' is no whole number"),
        ("0,prefill,0,2,1e20,,hit,,true", "line 3, column expert: '1e20' is too large a number"),
        (
            "0,prefill,0,2,,,hit,,true",
            "write it, or -1 in all slots of a routing that was not there",
        ),
        (
            "0,prefill,0,0,1,101,hit,,true",
            "an expert of layer 0 has 101 bytes here and 100 in another row",
        ),
    ],
)
def test_a_wrong_value_is_named(row, sentence, write):
    with pytest.raises(TraceError) as caught:
        write([ROWS[0], row, *ROWS[2:]])
    assert sentence in str(caught.value)
