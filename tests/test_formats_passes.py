"""Passes of a file that does not number them: chunks, drafted tokens, rejections, cancels."""

import numpy as np
import pytest
from exact_engine import session

from tracekit.formats import open_any
from tracekit.replaying import replay
from tracekit.trace import Trace, write_trace

HEAD = "# route_trace v1\n# model=m arch=a n_layer={layers} n_expert=8 n_expert_used=1\n"
SIZES = "# layer={i} expert_bytes=1048576 dense_bytes=1\n"


@pytest.fixture
def write(tmp_path):
    """Give a function that writes rows of (turn, phase, step, layer, expert) and opens the file."""

    def open_rows(rows, layers=2):
        lines = [HEAD.format(layers=layers), *(SIZES.format(i=i) for i in range(layers))]
        lines.append("turn,phase,step,layer,slot,expert\n")
        lines += [f"{t},{p},{s},{layer},0,{e}\n" for t, p, s, layer, e in rows]
        path = tmp_path / "run.csv"
        path.write_text("".join(lines))
        return open_any(path)

    return open_rows


def passes(trace: Trace) -> list[tuple[int, int, bool]]:
    steps = trace.steps(["pass", "step", "kept"])
    return list(zip(*(steps[name].tolist() for name in ("pass", "step", "kept")), strict=True))


@pytest.mark.parametrize(
    "seed", [*range(15), *(pytest.param(s, marks=pytest.mark.slow) for s in range(15, 200))]
)
def test_what_an_exact_engine_wrote_replays_exactly(seed, tmp_path):
    """Chunked prompts, drafted and rejected tokens, cancels, several turns, unequal sizes."""
    written = session(seed)
    path = tmp_path / "run.csv"
    path.write_text(written.text)
    opened = open_any(path)
    write_trace(opened, tmp_path / "run.trace")
    for trace in (opened, Trace.open(tmp_path / "run.trace")):
        (row,) = replay(trace, "lru", cache_bytes=written.budget, validate=True).rows
        assert [row.hits_decode, row.hits] == [written.hits[1], sum(written.hits)]
        assert [row.lookups_decode, row.lookups] == [written.lookups[1], sum(written.lookups)]
        assert [row.read_bytes_decode, row.read_bytes] == [
            written.read_bytes[1],
            sum(written.read_bytes),
        ]
        assert row.validation.mismatches == 0
        assert row.validation.lookups == written.lookups[1]
        steps = trace.steps(["turn", "pass", "step", "kept"])
        places = zip(*(steps[n].tolist() for n in ("turn", "step", "pass", "kept")), strict=True)
        assert {(t, s): p for t, s, p, kept in places if kept} == written.kept


def test_drafted_tokens_are_one_pass(write):
    """Two tokens want the same expert of each layer: the second finds it in the same load."""
    trace = write([(0, 1, 0, 0, 3), (0, 1, 1, 0, 3), (0, 1, 0, 1, 3), (0, 1, 1, 1, 3)])
    assert passes(trace) == [(0, 0, True), (0, 1, True)]
    (row,) = replay(trace, "lru", cache_mib=8).rows
    assert (row.hits_decode, row.lookups_decode) == (0, 2)


def test_a_rejected_draft_comes_again(write):
    drafted = [(0, 1, s, layer, e) for layer in (0, 1) for s, e in ((0, 1), (1, 2))]
    again = [(0, 1, s, layer, e) for layer in (0, 1) for s, e in ((1, 4), (2, 5))]
    trace = write(drafted + again)
    assert passes(trace) == [(0, 0, True), (0, 1, False), (1, 1, True), (1, 2, True)]
    assert trace.n_decoded == 3


def test_a_cancelled_prompt_is_begun_anew(write):
    prompt = [(0, 0, s, layer, s) for layer in (0, 1) for s in range(3)]
    trace = write(prompt + prompt + [(0, 1, 3, 0, 1), (0, 1, 3, 1, 1)])
    assert passes(trace) == [
        *((0, s, False) for s in range(3)),
        *((1, s, True) for s in range(3)),
        (2, 3, True),
    ]


def test_one_layer_has_a_pass_for_each_decoded_step(write):
    trace = write([*((0, 0, s, 0, s) for s in range(3)), *((0, 1, s, 0, 1) for s in (3, 4))], 1)
    assert [p for p, _, _ in passes(trace)] == [0, 0, 0, 1, 2]


def test_a_file_stored_token_by_token_has_one_pass_a_prompt(write):
    rows = [(0, int(s > 2), s, layer, s) for s in range(5) for layer in (0, 1)]
    trace = write(rows)
    assert [p for p, _, _ in passes(trace)] == [0, 0, 0, 1, 2]
    assert trace.routing(["layer"])["layer"].tolist() == [0, 0, 0, 1, 1, 1, 0, 1, 0, 1]


def test_unknown_steps_of_a_prompt_are_counted(write):
    """The last layer routes the prompt's last token only."""
    rows = [(0, 0, -1, 0, e) for e in (1, 2, 3)] + [(0, 0, -1, 1, 4)]
    rows += [(0, 0, -1, 0, e) for e in (5, 6)] + [(0, 0, -1, 1, 7)]
    trace = write([*rows, (0, 1, 5, 0, 1), (0, 1, 5, 1, 1)])
    assert trace.routing(["step"])["step"].tolist() == [0, 1, 2, 2, 3, 4, 4, 5, 5]
    assert [p for p, _, _ in passes(trace)] == [0, 0, 0, 1, 1, 2]


def test_the_speculative_file_replays_as_the_engine_ran(phone_traces):
    """The engine had 2253 hits of 4793 decode lookups."""
    trace = open_any(phone_traces / "cases" / "spec.route.csv.gz")
    (row,) = replay(trace, "lru", cache_mib=96, validate=True).rows
    assert (row.hits_decode, row.lookups_decode) == (2253, 4793)
    assert row.validation.mismatches == 0
    trace = open_any(phone_traces / "cases" / "spec_min.route.csv")
    (row,) = replay(trace, "lru", cache_mib=8).rows
    assert (row.hits_decode, row.lookups_decode) == (0, 2)


def test_the_cancelled_file_is_read(phone_traces):
    trace = open_any(phone_traces / "cases" / "cancel.route.csv")
    assert np.count_nonzero(~trace.kept) == 60
    assert trace.n_decoded == 110
