"""Files a little different from the forms: each is read for what it is, or told how to mend it."""

import bz2
import json
import lzma
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from drawn_run import Drawn, small_run
from format_samples import EXPERTS, json_lines, long_csv, routing_lines, saved
from layouts import LAYOUTS
from layouts_servers import physical, records_of
from test_formats_drawn import check
from torch_writer import T, saved_by_torch

from tracekit.formats import ImportOptions, open_any
from tracekit.trace import Trace, TraceError, TracekitError, UsageError

CSV = long_csv().decode()
PLACES = [(token, layer) for token in range(7) for layer in (0, 1)]
ROWS = [{"token": t, "layer": n, "experts": EXPERTS[t, n].tolist()} for t, n in PLACES]


@pytest.fixture
def opened(tmp_path):
    def opened(content: bytes | str, **options: object) -> Trace:
        path = tmp_path / "run"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return open_any(path, options=ImportOptions(**options))

    return opened


def experts_of(trace: Trace) -> np.ndarray:
    rows = trace.routing(["step", "layer", "experts"])
    order = np.lexsort((rows["layer"], rows["step"]))
    return rows["experts"][order].reshape(-1, len(trace.moe_layers), trace.top_k)


def as_table(rows: list[dict]) -> bytes:
    return saved(lambda file: pq.write_table(pa.Table.from_pylist(rows), file))


# ---- read for what they are ---------------------------------------------------------------------


def with_floats(line: str) -> str:
    fields = line.split(",")
    return ",".join([fields[0], *(f"{field}.0" for field in fields[1:5]), *fields[5:]])


@pytest.mark.parametrize(
    "content",
    [
        "\n".join([CSV.splitlines()[0], *map(with_floats, CSV.splitlines()[1:])]) + "\n",
        json_lines([{**row, "experts": list(map(float, row["experts"]))} for row in ROWS]),
        as_table([{**row, "experts": list(map(float, row["experts"]))} for row in ROWS]),
        as_table(
            [
                {"token": float(row["token"]), "layer": row["layer"], "expert": float(expert)}
                for row in ROWS
                for expert in row["experts"]
            ]
        ),
    ],
    ids=["csv", "jsonl", "lists in parquet", "parquet"],
)
def test_whole_numbers_may_be_written_as_floats(content, opened):
    assert np.array_equal(experts_of(opened(content)), EXPERTS)


def test_a_fraction_is_named_where_it_stands(opened):
    lines = CSV.splitlines()
    lines[4] = lines[4].replace(",7,", ",7.5,")
    with pytest.raises(TraceError, match=r"line 5, column expert: '7.5' is no whole number"):
        opened("\n".join(lines))
    with pytest.raises(TraceError, match=r"expert holds 1.5, where a whole number is needed"):
        opened(as_table([{"token": 0.0, "layer": 0, "expert": 1.5}]))
    with pytest.raises(
        TraceError, match=r"row 0: its expert is missing; write it, or -1 in all slots"
    ):
        opened(as_table([{"token": 0, "layer": 0, "expert": float("nan")}]))


@pytest.mark.parametrize("write", [json_lines, as_table])
def test_a_routing_may_lack_its_list_of_weights(write, opened):
    rows = [{**row, "weights": None if n == 3 else [0.25, 0.5]} for n, row in enumerate(ROWS)]
    weights = opened(write(rows)).routing(["weights"])["weights"]
    assert np.isnan(weights).any(axis=1).tolist() == [n == 3 for n in range(len(ROWS))]


@pytest.mark.parametrize("write", [json_lines, as_table])
def test_slots_that_only_fill_up_lists_are_left_out(write, opened):
    padded = [{**row, "experts": [*row["experts"], -1, -1]} for row in ROWS]
    assert np.array_equal(experts_of(opened(write(padded))), EXPERTS)
    padded[3]["experts"][2] = 3
    with pytest.raises(TraceError, match=r"some slots of the routing name no expert"):
        opened(write(padded))


@pytest.mark.parametrize("write", [json_lines, as_table])
@pytest.mark.parametrize("name", ["weights", "residency", "dropped"])
def test_a_column_may_be_null_in_its_first_rows_or_in_all(name, write, opened):
    for n_null in (4, len(ROWS)):
        rows = [{**row, name: [1, 0] if n >= n_null else None} for n, row in enumerate(ROWS)]
        trace = opened(write(rows))
        assert trace.has(name) == (n_null < len(ROWS))
        assert np.array_equal(np.sort(experts_of(trace)), np.sort(EXPERTS))
        values = trace.routing([name])[name]
        unknown = np.isnan(values) if name == "weights" else values == 255
        assert unknown.all(axis=1).sum() == n_null


def test_phases_alone_show_the_passes_of_arrays(opened):
    phase = np.array([0, 0, 0, 1, 0, 0, 1])
    words = np.where(phase == 0, "Prompt", "decode")
    prompt = np.array(["b", "b", "b", "b", "a", "a", "a"])
    for given in (phase, phase.astype(bool), words):
        arrays = saved(np.savez, experts=EXPERTS, phase=given, prompt=prompt)
        steps = opened(arrays).steps(["turn", "pass"])
        assert steps["turn"].tolist() == [0, 0, 0, 0, 1, 1, 1]
        assert steps["pass"].tolist() == [0, 0, 0, 1, 2, 2, 3]
        assert opened(arrays, chunk=2).steps(["pass"])["pass"].tolist() == [0, 0, 1, 2, 3, 3, 4]


def test_numbers_of_layers_may_count_dense_ones(opened):
    experts = np.zeros((7, 4, 2), np.int16)
    experts[:, [1, 3]] = EXPERTS
    trace = opened(saved(np.savez, experts=experts, layers=[0, 1, 2, 5]))
    assert trace.moe_layers.tolist() == [1, 5]
    assert np.array_equal(experts_of(trace), EXPERTS)


def test_logits_may_be_kept_by_the_number_of_their_layer(opened):
    logits = np.zeros((7, 2, 8), np.float32)
    np.put_along_axis(logits, EXPERTS.astype(int), np.float32([2, 1]), axis=2)
    saved_logits = saved_by_torch(
        {layer: T(logits[:, n].copy()) for n, layer in enumerate((3, 12))}
    )
    trace = opened(saved_logits, top_k=2)
    assert trace.moe_layers.tolist() == [3, 12]
    assert np.array_equal(experts_of(trace), EXPERTS)


def test_the_case_of_the_names_of_arrays_does_not_matter(opened):
    trace = opened(saved(np.savez, Experts=EXPERTS, Prompt_Lengths=[3], N_EXPERT=20))
    assert trace.facts.model.n_expert == 20
    assert trace.steps(["pass"])["pass"].tolist() == [0, 0, 0, 1, 2, 3, 4]


def test_slots_that_only_fill_up_an_array_are_left_out(opened):
    padded = np.full((7, 3, 8), -1)
    padded[:, 1:, :2] = EXPERTS
    weights = np.where(padded < 0, 0, 0.5 - padded / 100)
    trace = opened(saved(np.savez, experts=padded, weights=weights))
    assert trace.moe_layers.tolist() == [1, 2]
    assert np.array_equal(np.sort(experts_of(trace)), np.sort(EXPERTS))
    assert trace.has("weights")
    padded[4, 1, 5] = 3
    with pytest.raises(TraceError, match=r"slot 2 is -1 while others name experts"):
        opened(saved(np.savez, experts=padded))


def test_a_text_of_a_token_is_not_its_position(opened):
    rows = [{**row, "token": f"w{row['token']}", "token_idx": row["token"]} for row in ROWS]
    assert np.array_equal(experts_of(opened(json_lines(rows))), EXPERTS)


@pytest.mark.parametrize(
    "name", ["llama.cpp positions", "llama.cpp steps", "expert-cache log", "colibri"]
)
@pytest.mark.parametrize("more", ["\n{}", "\ufeff{}"])
def test_logs_may_have_empty_lines(name, more, tmp_path):
    run, layout = small_run(), LAYOUTS[name]
    path = layout.write(run, tmp_path)
    path.write_text(more.format(path.read_text().replace("\n", "\r\n\r\n")))
    check(open_any(path), layout.view(run), layout)


def test_a_dump_of_no_pass_is_beside_others(tmp_path):
    run: Drawn = small_run()
    to_logical, experts = physical(run)
    for name, records in (("0", []), ("1", records_of(run, experts, 0))):
        value = {"records": records, "last_physical_to_logical_map": T(to_logical)}
        (tmp_path / name).write_bytes(saved_by_torch(value))
    check(open_any(tmp_path), run, LAYOUTS["sglang recorder, two ranks"])


# ---- told how to mend them ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (CSV.encode("utf-16"), "it is text as UTF-16: save it as UTF-8"),
        (b'data: {"choices": []}\n\ndata: [DONE]\n', "ask the server without stream"),
        (pa.Codec("zstd").compress(CSV.encode(), asbytes=True), "it is packed with zstd: unpack"),
        (bz2.compress(CSV.encode()), "it is packed with bzip2: unpack"),
        (lzma.compress(CSV.encode()), "it is packed with xz: unpack"),
        (b"# by me\n" + CSV.encode(), "take the lines that begin with # out"),
        (b"\n" + CSV.encode(), "take empty lines out"),
        (CSV.replace(",", "|"), r"parted by '\|': part them by commas"),
        (CSV.split("\n", 1)[1], "name the columns in a line before"),
        (json.dumps(ROWS), "write an object for each routing"),
        (json.dumps(ROWS, indent=1), "write an object for each routing"),
        ('token,layer,experts\n0,0,"[3, 2]"\n', "is a list, and in a CSV each selected expert has"),
        (saved(np.savez, experts_0=EXPERTS, experts_1=EXPERTS), "numpy.concatenate them to one"),
        (saved(np.savez, experts=EXPERTS * 1.0), "docs/formats.md has the line that makes them"),
        (
            saved(np.savez, experts=EXPERTS, lengths=[4, 3], prompt_lengths=[2, 5]),
            "the prompt of run 1 has 5 tokens, and the run 3 with it",
        ),
        (saved_by_torch({"experts": T(EXPERTS)}), "numpy.savez.FILE, experts=tensor.cpu"),
        (saved_by_torch({"records": []}), "a dump of SGLang's recorder without a pass"),
        (saved(np.savez, router_logits=EXPERTS * 1.0), "add experts = numpy.argsort"),
        (
            saved(lambda file: feather.write_feather(pa.table({"a": [1]}), file)),
            "write the table as Parquet",
        ),
        (
            saved(np.savez, experts=EXPERTS, phase=["prefill"] * 6 + ["x"]),
            "phase has 'x', neither prefill nor decode",
        ),
        (
            json_lines([*ROWS, {**ROWS[0], "layer": "1"}]),
            'line 15: layer is "1", where a whole number is due',
        ),
        (
            json_lines([*ROWS, {**ROWS[0], "experts": ["a", 2]}]),
            "where a list of whole numbers is due",
        ),
        (
            "token,layer,expert\n1,1,3\n0,0,1\n1,0,2\n0,1,5\n0,1,4\n1,1,2\n0,0,3\n1,0,1\n",
            "sort them by token and layer, or say in a column prompt",
        ),
    ],
)
def test_the_sentence_names_the_mend(content, words, opened):
    with pytest.raises(TracekitError, match=words):
        opened(content)


def test_a_file_is_named_once(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(CSV)
    with pytest.raises(UsageError, match=r"a\.csv is named twice; name each file of a run once\."):
        open_any([path, tmp_path / "." / "a.csv"])


def test_files_beside_a_run_are_passed_over_or_named(tmp_path):
    folder: Path = tmp_path / "run"
    folder.mkdir()
    (folder / "b.jsonl").write_bytes(routing_lines())
    (folder / ".DS_Store").write_bytes(b"\0\0\0\1Bud1")
    (folder / ".cache").mkdir()
    (folder / "_SUCCESS").touch()
    (folder / ".cache" / "b.jsonl").write_bytes(routing_lines())
    assert len(np.unique(open_any(folder).steps(["turn"])["turn"])) == 1
    (folder / "README.md").write_text("how it was run")
    with pytest.raises(TraceError, match=r"run holds README.md beside files of a trace; take it"):
        open_any(folder)
    shutil.copy(folder / "b.jsonl", folder / "README.md")
    (folder / "a.csv").write_text(CSV)
    with pytest.raises(TraceError, match=r"holds files of several formats.*name those of one run"):
        open_any(folder)
