"""The ``# route_trace v1`` format: what it reads, and the sentences about broken files.

What holds for every format is in `test_formats_conformance`.
"""

import gzip
from pathlib import Path

import numpy as np
import pytest
from route_trace_files import HEADER, PREAMBLE, routing, text, turn

from tracekit.formats import open_any
from tracekit.replaying import build_batches
from tracekit.routing.residency import recorded_rates
from tracekit.trace import Trace, TraceError, describe, write_trace
from tracekit.trace.schema import DECODE


@pytest.fixture
def write(tmp_path):
    def write(content, name="run.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


# ---- phone traces -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tokens", "layers", "k", "rate"),
    [("qwen", 128, 48, 6, 0.7488), ("gptoss", 64, 36, 2, 0.3241)],
)
def test_phone_traces(phone_traces, name, tokens, layers, k, rate, tmp_path):
    trace = open_any(phone_traces / "traces" / f"{name}.route.csv")
    figures, recorded = describe(trace), recorded_rates(trace)
    assert trace.complete
    assert trace.warnings == []
    assert figures["tokens_decode"] == tokens
    assert figures["passes"] == tokens + 1
    assert recorded["recorded_lookups_decode"] == tokens * layers * k
    assert recorded["recorded_hit_rate_cumulative"] == pytest.approx(rate, abs=5e-5)
    rows = trace.routing(["phase", "residency", "weights"])
    assert set(np.unique(rows["residency"][rows["phase"] == DECODE])) == {0, 1}
    assert not np.isnan(rows["weights"]).any()
    # Written and opened again it is the same trace.
    write_trace(trace, tmp_path / "it.trace")
    assert Trace.open(tmp_path / "it.trace").digest == trace.digest


# ---- what it reads ------------------------------------------------------------------------------


def test_a_small_file_in_every_detail(write):
    trace = open_any(write(text(turn(0) + turn(1))))
    rows = trace.routing(
        ["turn", "pass", "phase", "step", "layer", "experts", "weights", "residency", "dropped"]
    )
    assert rows["turn"].tolist() == [0] * 8 + [1] * 8
    assert rows["pass"].tolist() == [0] * 4 + [1, 1, 2, 2] + [3] * 4 + [4, 4, 5, 5]
    assert rows["phase"].tolist() == ([0] * 4 + [1] * 4) * 2
    assert rows["step"].tolist() == [0, 1, 2, 2, 3, 3, 4, 4] * 2
    assert rows["layer"].tolist() == [1, 1, 1, 2, 1, 2, 1, 2] * 2
    assert (rows["experts"] == [3, 5]).all()
    assert (rows["weights"] == [0.75, 0.25]).all()
    assert (rows["residency"] == 0).all()
    assert (rows["dropped"] == 255).all()  # the file has no such column: unknown
    assert trace.facts.model.name == "My Model Q4"
    assert trace.facts.source == "imported"
    assert trace.budget_bytes is None
    assert trace.moe_layers.tolist() == [1, 2]
    assert trace.expert_bytes.tolist() == [100, 200]
    assert trace.layers["expert_bytes"].to_pylist() == [None, 100, 200]
    assert trace.layers["dense_bytes"].to_pylist() == [70, 71, 72]
    assert trace.steps(["step"])["step"].tolist() == [0, 1, 2, 3, 4] * 2


def test_columns_are_known_by_name(write):
    rows = [f"{r},{i % 2}" for i, r in enumerate(turn(0))]
    trace = open_any(write(text(rows, header=HEADER + ",dropped")))
    assert (trace.routing(["dropped"])["dropped"] == [0, 1]).all()
    # Another order, one column less, and one that this version does not know.
    swapped = [",".join([f[5], "x", *f[:5]]) for f in (r.split(",") for r in turn(0))]
    trace = open_any(write(text(swapped, header="expert,later,turn,phase,step,layer,slot")))
    assert (trace.routing(["experts"])["experts"] == [3, 5]).all()
    assert not trace.has("weights")


def test_unknown_weights_are_nan_and_never_0(write):
    rows = turn(0)
    rows[-1] = routing(0, 1, 4, 2, weights=("0.5", "nan"))[1]
    weights = open_any(write(text(rows))).routing(["weights"])["weights"]
    assert np.isnan(weights[-1, 1])
    assert np.isnan(weights).sum() == 1


def test_a_prompt_in_chunks_is_a_pass_for_each_chunk(write):
    chunks = [r for step in (0, 1) for r in routing(0, 0, step, 1)]
    chunks += routing(0, 0, 1, 2) + routing(0, 0, 2, 1) + routing(0, 0, 2, 2)
    rows = open_any(write(text(chunks + turn(0)[8:]))).routing(["pass", "layer", "step"])
    assert rows["pass"].tolist() == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert rows["layer"].tolist()[:5] == [1, 1, 2, 1, 2]
    assert rows["step"].tolist()[:5] == [0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    "disguise",
    [
        lambda b: b.replace(b"\n", b"\r\n"),
        lambda b: b"\xef\xbb\xbf" + b,
        gzip.compress,
        lambda b: gzip.compress(b"\xef\xbb\xbf" + b.replace(b"\n", b"\r\n")),
        lambda b: b.rstrip(b"\n"),
        lambda b: b + b"\n\n",
        lambda b: b"\n\n" + b,
        lambda b: b.replace(HEADER.encode() + b"\n", HEADER.encode() + b"\n\n"),
    ],
    ids=["crlf", "bom", "gzip", "all", "no newline", "blank end", "blank start", "blank inside"],
)
def test_line_breaks_and_compression_change_nothing(write, disguise):
    plain = text(turn(0) + turn(1))
    expected = open_any(write(plain))
    # The name says nothing: the content does.
    trace = open_any(write(disguise(plain.encode()), name="whatever.trace"))
    assert trace.digest == expected.digest
    assert trace.warnings == []
    assert trace.complete


def test_a_budget_in_the_preamble_is_the_recorded_one(write):
    with_budget = PREAMBLE.replace("n_expert_used=2", "n_expert_used=2 cache_mib=40")
    assert open_any(write(text(turn(0), with_budget))).budget_bytes == 40 << 20


# ---- a recorder that was killed -----------------------------------------------------------------


@pytest.mark.slow  # cut at every byte
def test_a_file_cut_near_its_end_is_read_up_to_its_last_whole_routing(write):
    content = text(turn(0)).encode()
    lines = content.splitlines(keepends=True)
    last_pass = len(b"".join(lines[:-4]))
    for size in range(last_pass + 1, len(content) - 1):
        trace = open_any(write(content[:size]))
        # Four lines make the two routings of the last pass. One without its newline counts if
        # all its fields are there; the last is the size of an expert.
        *_, last = content[:size].split(b"\n")
        whole = content[last_pass:size].count(b"\n") + last.endswith((b",100", b",200"))
        assert trace.n_rows == 6 + whole // 2, size
        assert not trace.complete or whole == 4
        assert len(trace.warnings) == (0 if trace.complete else 1)


def test_a_cut_file_has_one_warning_that_says_where_it_ends(write, tmp_path):
    path = write(text(turn(0)).removesuffix("0,200\n"))
    trace = open_any(path)
    assert trace.warnings == [
        f"{path} is incomplete: it is cut off at its end, and read up to its last whole routing "
        "(turn 0, step 4, layer 1)."
    ]
    write_trace(trace, tmp_path / "cut.trace")
    again = Trace.open(tmp_path / "cut.trace")
    assert again.digest == trace.digest
    assert len(again.warnings) == 1


def test_a_size_that_contradicts_the_preamble_is_named(write):
    content = text(turn(0))
    path = write(content.replace("2,2,0,3,0.75,0,200", "2,2,0,3,0.75,0,150"))
    assert open_any(path).warnings == [
        f"{path}, line 13, column expert_bytes: 150 contradicts the 200 bytes that the preamble gives "
        "an expert of layer 2; the preamble counts."
    ]
    (more,) = open_any(write(content.replace(",200\n", ",199\n"))).warnings
    assert "as do 5 more lines; the preamble counts." in more
    # Nothing is read for a hit, and of layer 0 the preamble knows no size.
    assert open_any(write(content.replace(",200\n", ",0\n"))).warnings == []
    assert open_any(write(content.replace("layer=2 expert_bytes=200", "layer=2"))).warnings == []


@pytest.mark.parametrize("size", ["-1", "x", "0x64", "1e2", "", "9" * 19, "nan"])
def test_a_size_that_is_no_number_is_refused(size, write):
    path = write(text(turn(0)).replace("2,2,0,3,0.75,0,200", f"2,2,0,3,0.75,0,{size}"))
    with pytest.raises(TraceError, match=r"line 13, column expert_bytes: .* is no whole number"):
        open_any(path)


def test_a_tail_of_zero_bytes_is_a_cut_line(write):
    trace = open_any(write(text(turn(0)).encode()[:-1] + b"\n" + b"\0" * 300))
    assert trace.n_rows == 8
    assert len(trace.warnings) == 1


def test_a_last_token_without_its_last_layer_is_incomplete(write):
    trace = open_any(write(text(turn(0)[:-2])))
    assert trace.n_rows == 7
    assert not trace.complete
    assert len(trace.warnings) == 1


# ---- broken files -------------------------------------------------------------------------------

GOOD = turn(0)
LINE = 7  # of the first row


def with_row(index, row):
    return text([*GOOD[:index], row, *GOOD[index + 1 :]])


def field(index, column, value):
    fields = GOOD[index].split(",")
    fields[HEADER.split(",").index(column)] = value
    return with_row(index, ",".join(fields))


REPAIR = "; repair the line or record again."
BROKEN = {
    "begins within a routing": (
        text(GOOD[1:]),
        "{path}, line 7: turn 0, phase 0, step 0, layer 1, slot 1 stands where slot 0 of a "
        "routing of n_expert_used=2 experts is due; rows are missing, out of order, or "
        "n_expert_used is wrong: correct it or record again.",
    ),
    "few fields": (
        with_row(4, "0,0,2"),
        "{path}, line 11: it has 3 fields where the header names 9" + REPAIR,
    ),
    "many fields": (
        with_row(4, GOOD[4] + ",7"),
        "{path}, line 11: it has 10 fields where the header names 9" + REPAIR,
    ),
    "words": (
        field(2, "expert", "four"),
        "{path}, line 9, column expert: 'four' is no whole number from 0 to 65535" + REPAIR,
    ),
    "missing number": (
        field(2, "expert", ""),
        "{path}, line 9, column expert: '' is no whole number from 0 to 65535" + REPAIR,
    ),
    "nan where a number must be": (
        field(2, "step", "nan"),
        "{path}, line 9, column step: 'nan' is no whole number from 0 to 2147483647" + REPAIR,
    ),
    "negative expert": (
        field(0, "expert", "-1"),
        "{path}, line 7, column expert: '-1' is no whole number from 0 to 65535" + REPAIR,
    ),
    "negative step": (
        field(0, "step", "-2"),
        "{path}, line 7, column step: '-2' is no whole number from 0 to 2147483647" + REPAIR,
    ),
    "huge step": (
        field(0, "step", "99999999999999999999"),
        "{path}, line 7, column step: '99999999999999999999' is no whole number from 0 to "
        "2147483647" + REPAIR,
    ),
    "infinite weight": (
        field(3, "weight", "1e999"),
        "{path}, line 10, column weight, slot 1: inf is no routing weight; it is a finite number "
        "from 0 up, or null (nan in a CSV) if unknown.",
    ),
    "negative weight": (
        field(3, "weight", "-0.5"),
        "{path}, line 10, column weight, slot 1: -0.5 is no routing weight; it is a finite number "
        "from 0 up, or null (nan in a CSV) if unknown.",
    ),
    "weight of words": (
        field(3, "weight", "much"),
        "{path}, line 10, column weight: 'much' is neither a number nor nan" + REPAIR,
    ),
    "unknown residency": (
        field(3, "residency", "3"),
        "{path}, line 10, column residency, slot 1: 3 is not 0 (miss), 1 (hit) or 2 (prefetched), "
        "nor null.",
    ),
    "unknown phase": (
        text([r.replace("0,1,", "0,2,", 1) for r in GOOD]),
        "{path}, line 15, column phase: 2 is neither 0 (prefill) nor 1 (decode).",
    ),
    "expert out of range": (
        field(3, "expert", "8"),
        "{path}, line 10, column expert, slot 1: expert 8 is not below the model's n_expert = 8; "
        "correct the row or n_expert.",
    ),
    "expert twice": (
        field(3, "expert", "3"),
        "{path}, line 10, column expert: expert 3 stands twice in one routing (slots 0 and 1); a "
        "token selects distinct experts: correct or record it again.",
    ),
    "layer out of range": (
        text([r.replace("4,2,", "4,3,", 1) for r in GOOD]),
        "{path}, line 21, column layer: 3 is no layer of a model with 3 of them (0 to 2); correct "
        "the row or the model's n_layer.",
    ),
    "a row is missing": (
        text(GOOD[:3] + GOOD[4:]),
        "{path}, line 10: turn 0, phase 0, step 2, layer 1, slot 0 stands where slot 1 of a "
        "routing of n_expert_used=2 experts is due; rows are missing, out of order, or "
        "n_expert_used is wrong: correct it or record again.",
    ),
    "another token in the middle of a routing": (
        field(3, "step", "2"),
        "{path}, line 10: turn 0, phase 0, step 2, layer 1, slot 1 stands where slot 1 of a "
        "routing of n_expert_used=2 experts is due; rows are missing, out of order, or "
        "n_expert_used is wrong: correct it or record again.",
    ),
    "a decoded token lacks a layer": (
        text(GOOD[:8] + GOOD[10:]),
        "{path}, line 15: the decode pass of turn 0, step 3 lacks layer 1, which other passes "
        "route; rows are missing, or prompts are mixed and no column names the prompt of a row: add "
        "what is missing, or record it again.",
    ),
    "a step is missing": (
        text(GOOD[:8] + GOOD[12:]),
        "{path}, line 15: turn 0 goes from step 2 to step 4; the steps of a turn follow each other "
        "without a gap: rows are missing or doubled, record it again.",
    ),
    "a routing twice": (
        text(GOOD + GOOD[-2:]),
        "{path}, line 23: the routing of turn 0, step 4, layer 2 stands twice: remove one.",
    ),
    "no rows": (text([]), "{path} holds no whole routing; record it again."),
    "half a routing": (text(GOOD[:1]), "{path} holds no whole routing; record it again."),
    "no header": (PREAMBLE, "{path} holds a preamble but no routings; record it again."),
    "header lacks a column": (
        text(GOOD, header=HEADER.replace("expert,", "")),
        "{path}, line 6: the header lacks expert; it begins 'turn,phase,step,layer,slot,expert'.",
    ),
    "header names a column twice": (
        text(GOOD, header=HEADER.replace("weight", "expert")),
        "{path}, line 6: the header names a column twice; it begins "
        "'turn,phase,step,layer,slot,expert'.",
    ),
    "no preamble": (
        text(GOOD, preamble=""),
        "{path}: its preamble does not give model, arch, n_layer, n_expert, n_expert_used; before "
        "the header, add '# model=NAME arch=ARCH n_layer=N n_expert=N n_expert_used=K' and one "
        "'# layer=N expert_bytes=N dense_bytes=N' a layer.",
    ),
    "negative size": (
        text(GOOD, PREAMBLE.replace("=200", "=-200")),
        "{path}, line 5: expert_bytes='-200' is no whole number from 0 to 1099511627776; "
        "correct it.",
    ),
    "size of nan": (
        text(GOOD, PREAMBLE.replace("=200", "=nan")),
        "{path}, line 5: expert_bytes='nan' is no whole number from 0 to 1099511627776; "
        "correct it.",
    ),
    "huge size": (
        text(GOOD, PREAMBLE.replace("=200", "=99999999999999")),
        "{path}, line 5: expert_bytes='99999999999999' is no whole number from 0 to "
        "1099511627776; correct it.",
    ),
    "layer twice": (
        text(GOOD, PREAMBLE.replace("layer=2 ", "layer=1 ")),
        "{path}, line 5: layer 1 stands twice; remove one.",
    ),
    "more layers than n_layer": (
        text(GOOD, PREAMBLE.replace("layer=2 ", "layer=9 ")),
        "{path}: its preamble gives a size of layer 9, but n_layer=3; correct one of them.",
    ),
    "no experts": (
        text(GOOD, PREAMBLE.replace("n_expert=8", "n_expert=0")),
        "{path}: n_expert = 0 is no size of a model; correct it.",
    ),
    "more slots than experts": (
        text(GOOD, PREAMBLE.replace("n_expert=8", "n_expert=1")),
        "{path}: top_k = 2 experts of 1 cannot be selected; correct top_k or n_expert.",
    ),
    "a newer version": (
        text(GOOD, PREAMBLE.replace("v1", "v2")),
        "{path}, line 1: route_trace version '2' is not the 1 that this tracekit reads; upgrade "
        "tracekit or record version 1.",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused_with_one_sentence(write, case):
    content, sentence = BROKEN[case]
    path = write(content)
    with pytest.raises(TraceError) as caught:
        open_any(path)
    assert str(caught.value) == sentence.format(path=path)
    assert caught.value.exit_code == 3


def test_blank_lines_count_when_a_broken_line_is_named(write):
    path = write(field(2, "expert", "four").replace(HEADER + "\n", "\n" + HEADER + "\r\n\r\n"))
    with pytest.raises(TraceError, match="line 11, column expert: 'four'"):
        open_any(path)


def test_a_wrong_value_is_named_by_its_line_in_a_file_out_of_order(write):
    rows = GOOD[2:4] + GOOD[:2] + GOOD[4:]
    rows[1] = rows[1].replace(",1,5,", ",1,9,")
    with pytest.raises(TraceError, match="line 8, column expert, slot 1: expert 9 is not below"):
        open_any(write(text(rows)))


def test_a_missing_layer_size_is_refused_when_it_is_asked_for(write):
    trace = open_any(write(text(GOOD, PREAMBLE.replace("# layer=2 expert_bytes=200", "# layer=2"))))
    with pytest.raises(TraceError) as caught:
        _ = trace.expert_bytes
    assert str(caught.value) == (
        f"{trace.name} does not say how many bytes an expert of layer 2 has (expert_bytes), so "
        "nothing can be said in MiB; add it: `tracekit import` takes --model PATH or --expert-mib M."
    )
    assert describe(trace)["bank_bytes"] is None


# ---- a variable number of experts ---------------------------------------------------------------


def with_counts(counts, k=2) -> list[str]:
    """Return decode routings at two layers with so many experts each, all of different ones."""
    rows = []
    for number, count in enumerate(counts):
        step, layer = divmod(number, 2)
        rows += [f"0,1,{step},{layer + 1},{slot},{slot},0.5,0,1" for slot in range(count)]
    return rows


@pytest.mark.parametrize(
    ("counts", "line", "said", "used"),
    [
        ([2, 1, 2, 1, 1, 2], 10, "1 to 2 experts", 2),
        ([1, 3, 2, 2, 4, 2], 8, "1 to 4 experts", 4),
        ([2, 3] * 20, 11, "2 to 3 experts", 3),
    ],
)
def test_a_variable_number_of_experts_is_called_that(write, counts, line, said, used):
    path = write(text(with_counts(counts)))
    with pytest.raises(TraceError) as caught:
        open_any(path)
    assert str(caught.value) == (
        f"{path}, line {line}: the routings have {said}, as of a model that chooses how many for "
        f"each token, and a trace has the same number in all: give n_expert_used={used} and as many "
        "rows to every routing, with dropped=1 in those of experts that it did not use."
    )


@pytest.mark.parametrize("counts", [[2, 2, 1, 2, 2, 2], [2] * 200 + [1, 2, 1, 2], [3] * 6])
def test_lost_rows_are_no_variable_number(write, counts):
    path = write(text(with_counts(counts)))
    with pytest.raises(TraceError, match="rows are missing, out of order, or n_expert_used is"):
        open_any(path)


def test_the_mend_for_a_variable_number_of_experts_is_one(phone_traces, tmp_path):
    path = phone_traces / "cases" / "dynamic_k.route.csv"
    with pytest.raises(
        TraceError, match=r"line 8: the routings have 1 to 4 experts, as of a model"
    ):
        open_any(path)
    lines = path.read_text().splitlines()
    head = [line for line in lines if not line[0].isdigit()]
    by_place: dict[tuple[str, ...], list[list[str]]] = {}
    for fields in (line.split(",") for line in lines[len(head) :]):
        by_place.setdefault(tuple(fields[:4]), []).append(fields)
    for rows in by_place.values():
        unused = iter(sorted(set(map(str, range(8))) - {row[5] for row in rows}))
        for slot in range(len(rows), 4):
            rows.append([*rows[0][:4], str(slot), next(unused), "0", "0", "1048576", "1"])
    mended = tmp_path / "mended.csv"
    rows = [",".join(fields) for rows in by_place.values() for fields in rows]
    mended.write_text("\n".join([*head, *rows]) + "\n")
    trace = open_any(mended)
    assert trace.warnings == []
    assert build_batches(trace).lookups.sum() == len(lines) - len(head)
