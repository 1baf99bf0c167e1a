"""Bad input of every kind: one plain sentence, the right exit code, nothing half-written.

Each row gives what is wrong, how to make it, and the sentence; ``{path}`` is the input, and ``…``
stands for words of a library.
"""

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_helpers import csv_lines, run, write_csv

from tracekit.formats import open_any
from tracekit.trace import write_trace

MISSING_FACTS = (
    "{path}: its preamble does not give model, arch, n_layer, n_expert, n_expert_used; before the "
    "header, add '# model=NAME arch=ARCH n_layer=N n_expert=N n_expert_used=K' and one "
    "'# layer=N expert_bytes=N dense_bytes=N' a layer."
)
NO_WEIGHT = (
    "is no routing weight; it is a finite number from 0 up, or null (nan in a CSV) if unknown."
)
UNKNOWN = "{path} is no trace that tracekit knows: it is neither a .trace directory nor …."


def line(index: int, text: str | None) -> Callable[[], bytes]:
    """Make a CSV file with one line replaced, or left out."""

    def make() -> bytes:
        lines = csv_lines()
        lines[index : index + 1] = [] if text is None else [text]
        return "".join(f"{line}\n" for line in lines).encode()

    return make


def field(index: int, column: int, text: str) -> Callable[[], bytes]:
    """Make a CSV file with one field of one line replaced."""
    fields = csv_lines()[index].split(",")
    fields[column] = text
    return line(index, ",".join(fields))


def good() -> bytes:
    return "".join(f"{line}\n" for line in csv_lines()).encode()


FILES = {
    "empty": (lambda: b"", "{path} is empty; record or copy it again."),
    "blank": (lambda: b"\n \n", "{path} is empty; record or copy it again."),
    "text": (lambda: b"Dear diary,\n", UNKNOWN),
    "binary": (lambda: bytes(range(256)), UNKNOWN),
    "newer version": (
        line(0, "# route_trace v2"),
        "{path}, line 1: route_trace version '2' is not the 1 that this tracekit reads; "
        "upgrade tracekit or record version 1.",
    ),
    "preamble without the model": (line(1, None), MISSING_FACTS),
    "header alone": (lambda: good()[good().index(b"turn,") :], MISSING_FACTS),
    "preamble alone": (
        lambda: good()[: good().index(b"turn,")],
        "{path} holds a preamble but no routings; record it again.",
    ),
    "no rows": (
        lambda: "".join(f"{line}\n" for line in csv_lines()[:5]).encode(),
        "{path} holds no whole routing; record it again.",
    ),
    "layer without a size": (
        line(3, None),
        "{path} does not say how many bytes an expert of layer 1 has (expert_bytes), so nothing "
        "can be said in MiB; add it: `tracekit import` takes --model PATH or --expert-mib M.",
    ),
    "negative size": (
        line(2, "# layer=0 expert_bytes=-5"),
        "{path}, line 3: expert_bytes='-5' is no whole number from 0 to 1099511627776; correct it.",
    ),
    "size that is no number": (
        line(2, "# layer=0 expert_bytes=nan"),
        "{path}, line 3: expert_bytes='nan' is no whole number from 0 to 1099511627776; "
        "correct it.",
    ),
    "huge size": (
        line(2, f"# layer=0 expert_bytes={10**20}"),
        "{path}, line 3: expert_bytes='100000000000000000000' is no whole number from 0 to "
        "1099511627776; correct it.",
    ),
    "more experts used than there are": (
        line(1, "# model=a arch=b n_layer=2 n_expert=8 n_expert_used=9"),
        "{path}: top_k = 9 experts of 8 cannot be selected; correct top_k or n_expert.",
    ),
    "broken line in the middle": (
        field(9, 4, "x"),
        "{path}, line 10, column slot: 'x' is no whole number from 0 to 65535; "
        "repair the line or record again.",
    ),
    "short line in the middle": (
        line(9, "0,0,2,0"),
        "{path}, line 10: it has 4 fields where the header names 9; "
        "repair the line or record again.",
    ),
    "missing line in the middle": (
        line(9, None),
        "{path}, line 10: turn 0, phase 0, step 2, layer 0, slot 1 stands where slot 0 of a "
        "routing of n_expert_used=2 experts is due; rows are missing, out of order, or "
        "n_expert_used is wrong: correct it or record again.",
    ),
    "expert out of range": (
        field(8, 5, "8"),
        "{path}, line 9, column expert, slot 1: expert 8 is not below the model's n_expert = 8; "
        "correct the row or n_expert.",
    ),
    "negative expert": (
        field(8, 5, "-1"),
        "{path}, line 9, column expert: '-1' is no whole number from 0 to 65535; "
        "repair the line or record again.",
    ),
    "huge expert": (
        field(8, 5, f"{10**20}"),
        "{path}, line 9, column expert: '100000000000000000000' is no whole number from 0 to "
        "65535; repair the line or record again.",
    ),
    "expert twice in a routing": (
        field(8, 5, csv_lines()[7].split(",")[5]),
        "{path}, line 9, column expert: expert 2 stands twice in one routing (slots 0 and 1); "
        "a token selects distinct experts: correct or record it again.",
    ),
    "negative weight": (
        field(8, 6, "-0.5"),
        "{path}, line 9, column weight, slot 1: -0.5 " + NO_WEIGHT,
    ),
    "infinite weight": (
        field(8, 6, "inf"),
        "{path}, line 9, column weight, slot 1: inf " + NO_WEIGHT,
    ),
    "huge weight": (
        field(8, 6, "1e999"),
        "{path}, line 9, column weight, slot 1: inf " + NO_WEIGHT,
    ),
    "gzip cut short": (
        lambda: gzip.compress(good())[:-20],
        "{path} is a damaged or cut gzip file (…); copy it again.",
    ),
}


def table(change: Callable[[pa.Table], pa.Table], file: str = "routing") -> Callable[[Path], None]:
    """Rewrite a table of a trace."""

    def spoil(trace: Path) -> None:
        path = trace / f"{file}.parquet"
        pq.write_table(change(pq.read_table(path)), path)

    return spoil


def column(name: str, values: Callable[[int], list], kind: pa.DataType, file: str = "routing"):
    """Replace a column of a table."""

    def change(old: pa.Table) -> pa.Table:
        at = old.schema.get_field_index(name)
        return old.set_column(at, name, pa.array(values(len(old)), kind))

    return table(change, file)


def facts(**changes) -> Callable[[Path], None]:
    """Change values of ``trace.json``."""

    def spoil(trace: Path) -> None:
        path = trace / "trace.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def cut(trace: Path) -> None:
    path = trace / "routing.parquet"
    path.write_bytes(path.read_bytes()[:-100])


PAIR = pa.list_(pa.uint16(), 2)
TRACES = {
    "truncated Parquet": (
        cut,
        "{path}/routing.parquet is cut short or damaged (…); copy, record or import it again.",
    ),
    "file missing": (
        lambda trace: (trace / "steps.parquet").unlink(),
        "{path}/steps.parquet is missing; a trace is complete in itself: "
        "copy the whole directory again.",
    ),
    "newer schema": (
        facts(schema="tracekit.trace/99"),
        "{path}/trace.json has schema version 99, newer than the 3 that this tracekit reads; "
        "upgrade tracekit.",
    ),
    "not JSON": (
        lambda trace: (trace / "trace.json").write_text("{"),
        "{path}/trace.json is not valid JSON (…); it is cut short or damaged: copy it again.",
    ),
    "wrong column type": (
        column("turn", lambda n: ["0"] * n, pa.string()),
        "{path}/routing.parquet, column turn: its type is string, but this model's trace needs "
        "int32; write the column with that type, or correct trace.json.",
    ),
    "wrong list width": (
        column("experts", lambda n: [[1]] * n, pa.list_(pa.uint16(), 1)),
        "{path}/routing.parquet, column experts: its type is fixed_size_list<…>[1], but this "
        "model's trace needs fixed_size_list<…>[2]; write the column with that type, or correct "
        "trace.json.",
    ),
    "missing column": (
        table(lambda old: old.drop_columns(["experts"])),
        "{path}/routing.parquet lacks the column 'experts' (…); it is not of a trace, or of a "
        "damaged one: record or import it again.",
    ),
    "expert out of range": (
        column("experts", lambda n: [[1, 8]] * n, PAIR),
        "{path}/routing.parquet, row 0, column expert, slot 1: expert 8 is not below the model's "
        "n_expert = 8; correct the row or n_expert.",
    ),
    "expert twice in a routing": (
        column("experts", lambda n: [[1, 1]] * n, PAIR),
        "{path}/routing.parquet, row 0, column expert: expert 1 stands twice in one routing "
        "(slots 0 and 1); a token selects distinct experts: correct or record it again.",
    ),
    "negative step": (
        column("step", lambda n: [-1] * n, pa.int32()),
        "{path}/routing.parquet, row 0, column step: -1 is negative; a step counts from 0: "
        "correct or record it again.",
    ),
    "gap in the steps": (
        table(lambda old: pa.concat_tables([old.slice(0, 6), old.slice(8)])),
        "{path}/routing.parquet, row 6: turn 0 goes from step 3 to step 5; the steps of a turn "
        "follow each other without a gap: rows are missing or doubled, record it again.",
    ),
    "decode pass without a layer": (
        table(lambda old: pa.concat_tables([old.slice(0, 5), old.slice(6)])),
        "{path}/routing.parquet, row 4: the decode pass of turn 0, step 3 lacks layer 1, which "
        "other passes route; rows are missing: record it again.",
    ),
    "size missing": (
        column("expert_bytes", lambda n: [None, 5], pa.int64(), "layers"),
        "{path} does not say how many bytes an expert of layer 0 has (expert_bytes), so nothing "
        "can be said in MiB; add it: `tracekit import` takes --model PATH or --expert-mib M.",
    ),
    "negative size": (
        column("expert_bytes", lambda n: [-3, 5], pa.int64(), "layers"),
        "{path}/layers.parquet, row 0, column expert_bytes: -3 bytes is no size of layer 0; "
        "give its true size, or null if it is not known.",
    ),
}

SIZES = "--cache-mib takes sizes in MiB from 0 to 1e12, not "
OPTIONS = {
    "unknown policy": (
        ("--policy", "lru,laeyr-lru"),
        "No policy or predictor is called 'laeyr-lru'; did you mean 'layer-lru'?",
    ),
    "unknown predictor": (
        ("--policy", "prev-tokn"),
        "No policy or predictor is called 'prev-tokn'; did you mean 'prev-token'?",
    ),
    "policy like no other": (
        ("--policy", "zzz"),
        "No policy or predictor is called 'zzz'; `tracekit policies` lists them.",
    ),
    "module that is not there": (
        ("--policy", "no_such_module:Mine"),
        "The policy 'no_such_module:Mine' cannot be loaded: No module named 'no_such_module'; "
        "the module must be importable from the current directory.",
    ),
    "class that is no policy": (
        ("--policy", "pathlib:Path"),
        "'pathlib:Path' is not a policy: pathlib must hold a class 'Path' derived from "
        "tracekit.policies.base.Policy.",
    ),
    "negative cache": (("--cache-mib", "-5"), SIZES + "'-5'."),
    "cache of letters": (("--cache-mib", "abc"), SIZES + "'abc'."),
    "cache that is no number": (("--cache-mib", "nan"), SIZES + "'nan'."),
    "cache without end": (("--cache-mib", "inf"), SIZES + "'inf'."),
    "cache beyond any machine": (("--cache-mib", "1e300"), SIZES + "'1e300'."),
    "cache of nothing": (("--cache-mib", ""), "--cache-mib has an empty value in ''."),
    "fraction in percent": (
        ("--cache-fraction", "50"),
        "--cache-fraction takes fractions of the expert bank from 0 to 1 (0.5 is half of it), "
        "not '50'.",
    ),
    "parameter without a value": (
        ("--param", "random.seed"),
        "--param takes NAME.FIELD=VALUE, as in prefetch.spec_max=2, not 'random.seed'.",
    ),
    "parameter of another policy": (
        ("--param", "random.seed=1"),
        "A parameter is set for 'random', which is not replayed here.",
    ),
    "unknown parameter": (
        ("--policy", "random", "--param", "random.sed=1"),
        "random has no parameter 'sed'; it has: seed.",
    ),
    "parameter of a wrong type": (
        ("--policy", "random", "--param", "random.seed=x"),
        "random.seed takes a whole number, not 'x'.",
    ),
    "negative seed": (("--seed", "-1"), "--seed takes a whole number, 0 or more, not '-1'."),
    "no threads": (("--jobs", "0"), "--jobs takes a whole number, 1 or more, not '0'."),
    "unknown format": (
        ("--format", "xml"),
        "There is no format 'xml' here; choose one of table, json, csv, parquet.",
    ),
    "Parquet to the terminal": (
        ("--format", "parquet"),
        "Parquet is not for the terminal: name a file with -o.",
    ),
}


def check(done, code: int, sentence: str) -> None:
    assert done.out == ""
    pattern = ".*".join(map(re.escape, sentence.split("…")))
    assert re.fullmatch(f"Error: {pattern}\n", done.err), done.err
    assert done.code == code


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("command", ["replay", "import"])
def test_bad_file(what, command, tmp_path):
    make, sentence = FILES[what]
    path = tmp_path / "bad.csv"
    path.write_bytes(make())
    out = tmp_path / "out.trace"
    if command == "replay":
        done = run("replay", path)
    elif "nothing can be said in MiB" in sentence:
        # All else in such a file is worth keeping; it is a cache of so many MiB that is refused.
        assert run("import", path, "-o", out).code == 0
        done = run("replay", out)
        path = out
    else:
        done = run("import", path, "-o", out)
        assert [p.name for p in tmp_path.iterdir()] == ["bad.csv"]
    check(done, 3, sentence.format(path=path))


@pytest.mark.parametrize("what", TRACES)
def test_bad_trace(what, tmp_path):
    spoil, sentence = TRACES[what]
    path = tmp_path / "bad.trace"
    write_trace(open_any(write_csv(tmp_path / "good.csv")), path)
    assert run("replay", path).code == 0
    spoil(path)
    check(run("replay", path), 3, sentence.format(path=path))


@pytest.mark.parametrize("what", OPTIONS)
def test_bad_option(what, tmp_path):
    options, sentence = OPTIONS[what]
    check(run("replay", write_csv(tmp_path / "good.csv"), *options), 2, sentence)


def test_no_such_file(tmp_path):
    path = tmp_path / "gone.trace"
    check(run("replay", path), 3, f"{path} does not exist; name an existing trace.")


def test_a_folder_that_is_no_trace(tmp_path):
    check(
        run("replay", tmp_path),
        3,
        f"{tmp_path} is a directory but no trace: it holds no trace.json; "
        "name the directory that 'record' or 'import' wrote.",
    )


def test_no_such_bundled_file():
    done = run("replay", "bundled:nothing")
    assert done.code == 2
    assert done.err.startswith("Error: No bundled file is called 'nothing'; there are: ")


def test_nothing_to_validate_against(tmp_path):
    lines = [",".join(line.split(",")[:7]) for line in csv_lines()[4:]]
    path = write_csv(tmp_path / "x.csv", csv_lines()[:4] + lines)
    check(
        run("replay", path, "--validate"),
        2,
        f"{path} carries no residency, so a replay cannot be validated against it; "
        "record with a streaming cache to have it.",
    )


def test_a_predictor_whose_columns_the_trace_lacks(tmp_path):
    done = run("replay", write_csv(tmp_path / "x.csv"), "--policy", "stale-gate")
    assert (done.code, done.out) == (1, "")
    assert "needs the column 'gate_input' of routing.parquet" in done.err
    assert "tracekit record" in done.err


@pytest.mark.parametrize(
    "make",
    [
        lambda: good().replace(b"\n", b"\r\n"),
        lambda: b"\xef\xbb\xbf" + good(),
        lambda: gzip.compress(good()),
        lambda: good().replace(b",0.5,", b",nan,"),
        lambda: good()[:-1],
    ],
    ids=["CRLF", "BOM", "gzip", "unknown weights", "no newline at the end"],
)
def test_an_unusual_but_whole_file_is_read(make, tmp_path):
    path = tmp_path / "odd.csv"
    path.write_bytes(make())
    plain = run("replay", write_csv(tmp_path / "plain.csv"), "--format", "csv")
    odd = run("replay", path, "--format", "csv")
    assert (odd.code, odd.err) == (0, plain.err)
    assert odd.out == plain.out


def test_a_file_cut_in_its_last_line_is_read_with_one_warning(tmp_path):
    path = tmp_path / "cut.csv"
    path.write_bytes(good()[:-12])
    done = run("replay", path, "--cache-mib", "10")
    assert done.code == 0
    assert done.err == (
        f"Warning: {path} is incomplete: it is cut off at its end, and read up to its last whole "
        "routing (turn 0, step 7, layer 0).\n"
    )
    assert done.out.startswith(f"{path} (incomplete): small, ")
    assert "cut off" not in done.out
    assert (
        json.loads(run("replay", path, "--format", "json").out)["provenance"]["complete"] is False
    )


def test_a_cache_of_zero_is_legal(tmp_path):
    done = run("replay", write_csv(tmp_path / "x.csv"), "--cache-mib", "0", "--format", "json")
    assert done.code == 0
    assert {r["hits"] for r in json.loads(done.out)["results"]} == {0}
