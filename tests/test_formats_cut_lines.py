"""Files of lines whose last line is not whole: what is left out, and what is said."""

import json

import pytest

from tracekit.formats import open_any

MEGATRON = {"step": 0, "layer": 0, "rank": 0, "num_tokens": 1, "topk": 2, "block": "decoder"}
LINES = {
    "csv": ["token,layer,slot,expert,weight"]
    + [f"{token},0,{slot},{token + slot},0.5" for token in range(4) for slot in (0, 1)],
    "jsonl": [json.dumps({"token": t, "layer": 0, "experts": [t, t + 1]}) for t in range(4)],
    "megatron.jsonl": [
        json.dumps({**MEGATRON, "step": t, "top_indices": [[t, t + 1]]}) for t in range(4)
    ],
}
SAID = "is incomplete: its last line is cut off, and is left out."


@pytest.fixture
def write(tmp_path):
    """Give a function that writes a text to a file and opens it as a trace."""

    def opened(name, text):
        path = tmp_path / f"x.{name}"
        path.write_text(text)
        return open_any(path)

    return opened


@pytest.mark.parametrize("name", LINES)
def test_a_last_line_that_is_cut_is_left_out(write, name):
    *whole, last = LINES[name]
    before = "".join(f"{line}\n" for line in whole)
    for end in (1, len(last) // 2, last.rindex(",")):
        trace = write(name, before + last[:end])
        assert not trace.complete
        assert any(each.endswith(SAID) for each in trace.warnings), (end, trace.warnings)
        assert trace.routing(["experts"])["experts"].tolist() == [[t, t + 1] for t in range(3)]


@pytest.mark.parametrize("name", LINES)
def test_a_last_line_without_an_end_is_read(write, name):
    found = write(name, "\n".join(LINES[name]))
    assert found.complete
    assert not any(SAID in each for each in found.warnings)
    assert found.routing(["experts"])["experts"].tolist() == [[t, t + 1] for t in range(4)]
