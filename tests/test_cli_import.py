"""``tracekit import`` and ``tracekit formats``: flags, what is said, files of no format."""

import json
import re

import numpy as np
import pytest
import runs_of_models as runs
from cli_helpers import run
from mutations import SENTENCE
from pages import ROOT

from tracekit.exports import EXPORTS
from tracekit.formats import COUNTS, FORMATS, open_any


@pytest.fixture
def write(tmp_path):
    def write(content: bytes, name: str = "run"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


IDS = np.array([[[0, 1], [2, 3]], [[1, 0], [3, 2]], [[4, 1], [0, 2]]])


def test_flags_say_what_the_file_does_not(write, tmp_path):
    path, out = write(runs.saved(np.save, IDS)), tmp_path / "x.trace"
    flags = ("--expert-mib", "1.5", "--n-expert", "9", "--n-layer", "4", "--top-k", "2")
    done = run("import", path, "-o", out, *flags)
    assert done.code == 0
    trace = open_any(out)
    assert trace.expert_bytes.tolist() == [3 << 19] * 2
    assert (trace.n_expert, trace.n_layer, trace.top_k) == (9, 4, 2)
    assert sorted(trace.facts.inferred) == ["passes", "phases"]
    assert "does not say what is prompt: every token is taken as decoded" in done.err
    swapped = write(runs.saved(np.save, IDS.transpose(2, 1, 0)), "swapped")
    again = tmp_path / "y.trace"
    assert run("import", swapped, "-o", again, "--axes", "k, layers, tokens", *flags).code == 0
    assert open_any(again).digest == trace.digest


def test_what_was_inferred_is_said_and_kept(write, tmp_path):
    path, out = write(runs.saved(np.save, IDS)), tmp_path / "x.trace"
    done = run("import", path, "-o", out)
    assert (
        f"{path} does not say how many experts a layer has: the largest expert id + 1." in done.err
    )
    assert f"{path} does not say how many layers the model has: the last layer" in done.err
    info = run("info", out).out
    assert "5 experts or more, 2 used per token" in info
    assert "inferred  n_expert: the largest expert id + 1" in info
    assert "slots     in an order that the source does not say" in info
    assert "sizes unknown, so caches are replayed at --cache-fraction alone" in info
    facts = json.loads(run("info", out, "--format", "json").out)
    assert facts["slot_order"] == "unknown"
    assert set(facts["inferred"]) == {"passes", "phases", "n_expert", "n_layer"}
    kept = json.loads((out / "trace.json").read_text())
    assert kept["inferred"] == facts["inferred"]


def test_sizes_can_be_given_to_a_trace_later(write, tmp_path):
    path, out = write(runs.saved(np.save, IDS)), tmp_path / "x.trace"
    assert run("import", path, "-o", out, "-q").code == 0
    done = run("import", out, "-o", tmp_path / "y.trace", "--expert-mib", "2", "--cache-mib", "8")
    assert done.code == 0
    trace = open_any(tmp_path / "y.trace")
    assert trace.expert_bytes.tolist() == [2 << 20] * 2
    assert trace.budget_bytes == 8 << 20
    assert np.array_equal(trace.routing(["experts"])["experts"].reshape(IDS.shape), IDS)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--expert-mib", "0"), "expert_mib takes a size in MiB above 0"),
        (("--expert-mib", "nan"), "expert_mib takes a size in MiB above 0"),
        (("--n-expert", "0"), "n_expert takes a whole number from 1 to 65536, not 0"),
        (("--n-expert", "4"), "expert 4 is not below the model's n_expert = 4"),
        (("--top-k", "3"), "has 2 experts a routing, not the top_k = 3"),
        (("--axes", "tokens,k"), "axes takes the three words tokens,layers,k"),
        (("--chunk", "-1"), "chunk takes a whole number from 1"),
    ],
)
def test_a_flag_that_cannot_be_is_refused(flags, sentence, write, tmp_path):
    done = run("import", write(runs.saved(np.save, IDS)), "-o", tmp_path / "x.trace", *flags)
    assert done.code in (2, 3)
    assert sentence in done.err
    assert SENTENCE.fullmatch(done.err.removeprefix("Error: ").strip())
    assert not (tmp_path / "x.trace").exists()


def test_several_files_are_one_trace(write, tmp_path):
    made = runs.made()
    rows = runs.rows_of(made)
    for turn in range(3):
        write(runs.as_csv([r for r in rows if r["prompt"] == turn]), f"{turn}.csv")
    paths = [tmp_path / f"{turn}.csv" for turn in range(3)]
    assert run("import", *paths, "-o", tmp_path / "x.trace").code == 0
    assert runs.is_of(open_any(tmp_path / "x.trace"), made)


def test_a_run_that_is_refused_halfway_leaves_nothing_behind(write, tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.formats.array_run.BLOCK_VALUES", 8)
    experts = np.tile(IDS, (4, 1, 1))
    experts[-1, 0] = 5
    path = write(runs.saved(np.save, experts))
    done = run("import", path, "-o", tmp_path / "x.trace")
    assert (done.code, done.out) == (3, "")
    assert "turn 0, token 11, layer 0), column expert: expert 5 stands twice" in done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run"]


# ---- rows that are wrong ------------------------------------------------------------------------

HEADER = "token,layer,expert\n"
WRONG_ROWS = {
    "no number": (HEADER + "0,0,1\n0,0,x\n", "line 3, column expert: 'x' is no whole number"),
    "too few fields": (HEADER + "0,0,1\n0,0\n0,0,2\n", "line 3: it has 2 fields where the header"),
    "an empty line counts": (HEADER + "\n\n0,0,1\n0,0,?\n", "line 5, column expert: '?'"),
    "another k": (
        HEADER + "0,0,1\n0,0,2\n1,0,1\n2,0,1\n2,0,2\n",
        "line 4: the routing of token 1 at layer 0 has 1 experts where 2 are due",
    ),
    "an expert twice": (HEADER + "0,0,1\n0,0,1\n", "expert 1 stands twice in one routing"),
    "a layer that is missing": (
        HEADER + "".join(f"{t},{n},{e}\n" for t in (0, 1) for n in (0, 1) if t + n for e in (1, 2)),
        "lacks layer 0",
    ),
    "layers after each other, of prompts without a name": (
        HEADER + "".join(f"{t},{n},1\n" for n in (0, 1) for t in (0, 1, 0, 1)),
        "lacks layer 1, which other passes route; rows are missing, or prompts are mixed and no "
        "column names the prompt of a row: add what is missing",
    ),
    "slots": (
        "token,layer,slot,expert\n0,0,0,1\n0,0,2,3\n",
        "line 2: the slots of the routing of token 0 at layer 0 are 0, 2 and not 0 to 1",
    ),
    "a phase": (
        "token,layer,expert,phase\n0,0,1,decode\n0,0,2,later\n1,0,1,decode\n1,0,2,decode\n",
        "line 3: phase is neither prefill nor decode",
    ),
    "a column twice": ("token,layer,expert,token\n0,0,1,2\n", "the header names a column twice"),
    "a huge layer": (HEADER + "0,40000,1\n0,40000,2\n", "40000 is no whole number from 0 to 32767"),
    "a negative token": (HEADER + "-1,0,1\n-1,0,2\n", "-1 is no whole number from 0"),
    "a gap": (HEADER + "0,0,1\n0,0,2\n2,0,1\n2,0,2\n", "goes from step 0 to step 2"),
    "JSON that is none": ('{"token":0,"layer":0,"experts":[1,2]}\n{"token":', "is incomplete"),
    "JSON of another type": (
        '{"token":0,"layer":0,"experts":[1,2]}\n{"token":1,"layer":0,"experts":["a",2]}\n',
        'line 2: experts is ["a", 2], where a list of whole numbers is due',
    ),
    "JSON that lacks a key": (
        '{"token":0,"layer":0,"experts":[1,2]}\n{"token":1,"experts":[1,2]}\n',
        "line 2: its layer is missing",
    ),
    "JSON of another k": (
        '{"token":0,"layer":0,"experts":[1,2]}\n{"token":1,"layer":0,"experts":[1]}\n',
        "line 2: experts has 1 values where other rows have 2",
    ),
    "JSON in the middle": (
        '{"token":0,"layer":0,"experts":[1,2]}\nyes\n{"token":1,"layer":0,"experts":[1,2]}\n',
        "line 2 is no JSON object",
    ),
}


@pytest.mark.parametrize("case", WRONG_ROWS)
def test_rows_that_are_wrong_are_named_by_their_line(case, write, tmp_path):
    text, sentence = WRONG_ROWS[case]
    done = run("import", write(text.encode()), "-o", tmp_path / "x.trace")
    assert sentence in done.err, done.err
    assert "Traceback" not in done.err


def test_passes_that_are_torn_apart_are_refused(write, tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.formats.rows.GATHERED_SLOTS", 20)
    monkeypatch.setattr("tracekit.formats.lines.PIECE_BYTES", 200)
    rows = runs.rows_of(runs.made(prompts=1, seed=5))
    rows += [{**row, "expert": row["expert"] ^ 1, "layer": row["layer"] + 10} for row in rows]
    done = run("import", write(runs.as_csv(rows)), "-o", tmp_path / "x.trace")
    assert done.code == 3
    assert "stand far before it in the file; sort the rows by prompt, pass (or token)" in done.err


# ---- files of no format -------------------------------------------------------------------------

NEAR = {
    "a CSV": (b"token,layer,logit\n0,1,2\n", "lacks a column for experts (experts, expert, "),
    "a JSON line": (b'{"layer": 1, "text": "a"}\n', "lacks a key for token"),
    "an archive": (runs.saved(a=IDS), "archive of the arrays a, and none is called experts"),
    "unnamed": (runs.saved(arr_0=IDS), "numpy.savez(FILE, experts=…) names it"),
    "logits": (runs.saved(logits=IDS * 0.5), "add experts = numpy.argsort(-logits, axis=2)"),
    "an array": (runs.saved(np.save, IDS.ravel() * 0.5), "an array of float64 with 1 axes, where"),
    "a Parquet file": (runs.as_parquet([{"layer": 1, "x": 2}]), "lacks a column for token"),
    "prose": (b"Dear diary", "it is neither a .trace directory nor of any format"),
}


@pytest.mark.parametrize("case", NEAR)
def test_a_file_of_no_format_is_told_what_it_lacks(case, write):
    content, reason = NEAR[case]
    done = run("info", write(content))
    assert done.code == 3
    assert reason in done.err
    assert "docs/formats.md shows forms that are easy to write" in done.err


def test_bare_logits_are_told_how_they_become_experts(write, tmp_path):
    logits = write(runs.saved(np.save, IDS * -0.5))
    for command in (("info", logits), ("import", logits, "-o", tmp_path / "x.trace")):
        done = run(*command)
        assert done.code in (2, 3)
        assert (
            "of router logits save experts = numpy.argsort(-logits, axis=2)[:, :, :k]" in done.err
        )


def test_axes_that_seem_mixed_up_are_warned_of(write, tmp_path):
    routed = np.sort(np.random.default_rng(0).random((3, 300, 8)).argsort(axis=2)[:, :, :2], axis=2)
    done = run("info", write(runs.saved(experts=routed)))
    assert "is read as 300 layers" in done.err
    flags = ("--axes", "layers,tokens,k", "-o", tmp_path / "x.trace")
    assert "layers, as its axes" not in run("import", write(runs.saved(experts=routed)), *flags).err


# ---- what is listed -----------------------------------------------------------------------------


def test_formats_are_listed():
    listed = run("formats").out
    of_json = json.loads(run("formats", "--format", "json").out)
    assert of_json["schema"] == "tracekit.formats/1"
    assert [each["name"] for each in of_json["formats"]] == [each.name for each in FORMATS]
    for each in FORMATS:
        assert re.search(rf"^{each.name} +\S", listed, re.MULTILINE)
        for text in (each.summary, each.told_by, each.lacks, " ".join(each.needs)):
            assert text in listed
    assert [each["name"] for each in of_json["counts"]] == [each.name for each in COUNTS]
    for cls in COUNTS:
        assert re.search(rf"^{cls.name} +\S", listed, re.MULTILINE)
    assert [each["name"] for each in of_json["exports"]] == [each.name for each in EXPORTS]
    to_write = listed.partition("To write:")[2]
    for cls in EXPORTS:
        assert re.search(rf"^{cls.name} +\S", to_write, re.MULTILINE)
        for text in (cls.summary, " ".join(cls.endings), *cls.lacks()):
            assert text in to_write
    rows = run("formats", "--format", "csv").out.splitlines()
    assert len(rows) == 1 + len([*FORMATS, *COUNTS, *EXPORTS])


PAGE = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.split("\n")[0])
def test_the_forms_shown_are_read(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "formats.md", "exec"), names)
    written = list(tmp_path.iterdir())
    trace = open_any(written[0]) if written else names["trace"]
    assert trace.n_decoded > 1
    assert trace.complete


AT_HAND = {
    "np.argsort(-logits, axis=2)[:, :, :k]": "logits",
    'np.argsort(~mask, axis=2, kind="stable")[:, :, :k]': "mask",
    "np.stack(layers, axis=1)": "layers",
    "np.stack(tokens)": "tokens",
    "routed[:, None, :]": "routed",
    "routed.astype(int)": "routed",
}


def test_what_is_at_hand_becomes_experts():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(9, 3, 8))
    chosen = np.sort(np.argsort(-logits, axis=2)[:, :, :2], axis=2)
    mask = np.zeros(logits.shape, bool)
    np.put_along_axis(mask, chosen, True, axis=2)
    layers, tokens = [chosen[:, n] for n in range(3)], list(chosen)
    has = {"np": np, "k": 2, "logits": logits, "mask": mask, "layers": layers, "tokens": tokens}
    lines = PAGE.partition("| what you have |")[2].partition("\n\n")[0]
    shown = re.findall(r"\| `(.*)` \|$", lines, re.MULTILINE)
    assert shown == list(AT_HAND)
    for code, name in AT_HAND.items():
        routed = chosen[:, 0] if "None" in code else chosen.astype(float)
        made = eval(code, {**has, "routed": routed})
        want = chosen[:, :1] if "None" in code else chosen
        assert name in code
        np.testing.assert_array_equal(np.sort(made, axis=2), want)


def test_every_form_is_shown():
    assert len(BLOCKS) == 5
