"""Studies: reading them, deciding claims, rerunning the ones that come with tracekit."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from cli_helpers import run, write_csv
from families import slow_where

from tracekit.studies import read_study, sweep
from tracekit.studies.claims import decide
from tracekit.studies.spec import Claim
from tracekit.trace import TracekitError, UsageError, synthesize, write_trace

REPLAYS = Path(__file__).parents[1] / "replays"
# Studies that take a second are rerun behind the slow marker; a new one is not.
LONG = ("recall", "bypass", "predictors-bundled", "accuracy", "speculation", "predictors")
LONG += ("published-curves", "cliff", "policies", "time", "layer-lag", "ring-phone")
SHIPPED = sorted(REPLAYS.glob("*.toml"))

STUDY = """
title = "A study"
about = "Of a synthetic trace."

[traces.small]
file = "small.trace"

[[run]]
policies = ["lru", "random", "belady"]
cache_cycles = [0.5, 2]
seeds = [0, 1]

[[run]]
predictors = ["prev-token"]

[[claim]]
says = "LRU hits nothing under a cycle"
figure = "hits_decode"
of = { policy = "lru", cache_cycles = 0.5 }
equals = 0

[[claim]]
says = "Belady beats random"
figure = "hit_rate_decode"
of = { policy = "belady" }
minus = { policy = "random", seed = 1 }
unit = "percent"
above = 0
"""


@pytest.fixture
def study(tmp_path):
    write_trace(synthesize(3, 12, 2, 40, prefill=4), tmp_path / "small.trace")
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def test_a_study_runs_and_its_claims_are_decided(study):
    result = sweep(study)
    frame = result.frame
    assert list(frame.columns[:5]) == ["trace", "policy", "predictor", "params", "seed"]
    # Only what draws random numbers runs once with each seed.
    assert frame.groupby("policy").size().to_dict() == {"lru": 2, "random": 4, "belady": 2}
    assert sorted(frame["seed"].dropna().unique()) == [0, 1]
    cycle = 3 * 2 * (3 << 20)
    assert sorted(frame["cache_bytes"].dropna().unique()) == [cycle // 2, 2 * cycle]
    assert (frame["predictor"] == "prev-token").sum() == 1
    assert [verdict.holds for verdict in result.verdicts] == [True, True]
    assert result.all_claims_hold
    assert str(result.verdicts[0]) == "holds          LRU hits nothing under a cycle: 0.00"
    assert sweep(study).csv == result.csv


FOREIGN = {
    "a list": "milk\nbread\n",
    "nothing": "",
    "a result of a replay": "policy,params,cache_bytes\nlru,,5\n",
    "a result of another study": "trace,policy\nother,lru\n",
    "another table of traces": "trace,size\nsmall,5\n",
    "no text": "trace,policy\nsmall,\udcff\n",
    "no table": 'trace,policy\nsmall,"' + "x" * 200_000,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_foreign_file_beside_a_study_stays(what, study):
    table = study.with_suffix(".csv")
    text = FOREIGN[what].encode(errors="surrogateescape")
    table.write_bytes(text)
    done = run("sweep", study)
    assert done.code == 2
    assert done.err == f"Error: {table} exists; use --force to overwrite it, or another name.\n"
    assert table.read_bytes() == text


def test_with_force_a_foreign_file_beside_a_study_is_replaced(study):
    table = study.with_suffix(".csv")
    table.write_text("milk\n")
    assert run("sweep", study, "--force").code == 0
    assert run("sweep", study).err.endswith("study.csv is unchanged.\n")


def test_a_former_result_of_fewer_runs_is_replaced(study):
    table = study.with_suffix(".csv")
    study.write_text(STUDY.replace("seeds = [0, 1]", "seeds = [1]"))
    assert run("sweep", study).code == 0
    study.write_text(STUDY)
    assert run("sweep", study).err.endswith("it was different before.\n")
    assert len(pd.read_csv(table)) == 9


def test_a_study_does_not_replace_itself(study):
    path = study.rename(study.with_suffix(".csv"))
    done = run("sweep", path, "--force")
    assert (done.code, done.err.count("is what the result is made from")) == (2, 1)
    assert path.read_text() == STUDY


def test_a_pipe_is_no_study(tmp_path):
    os.mkfifo(tmp_path / "x.toml")
    done = run("sweep", tmp_path / "x.toml")
    assert (done.code, done.err.count("is a folder, pipe or device")) == (2, 1)


def test_the_sweep_command_writes_prints_and_checks(study):
    table = study.with_suffix(".csv")
    first = run("sweep", study)
    assert first.code == 0
    assert first.out.startswith(f"A study ({study})\n  holds          LRU hits nothing")
    assert first.out.endswith("2 of 2 claims hold.\n")
    assert f"Wrote {table}." in first.err
    assert len(pd.read_csv(table)) == 9

    assert f"{table} is unchanged." in run("sweep", study).err
    assert run("sweep", "--check", study).code == 0
    assert "small: " in run("sweep", "-v", study).err  # what the replay had to say of the trace

    as_json = json.loads(run("sweep", "--format", "json", study).out)
    assert as_json["schema"] == "tracekit.sweep/1"
    (found,) = as_json["studies"]
    assert [claim["holds"] for claim in found["claims"]] == [True, True]
    assert len(found["results"]) == 9


def test_check_fails_on_a_changed_table_and_on_a_claim(study):
    table = study.with_suffix(".csv")
    missing = run("sweep", "--check", study)
    assert missing.code == 1
    assert "there is no study.csv beside it" in missing.err
    assert not table.exists()

    run("sweep", study)
    frame = pd.read_csv(table)
    frame.loc[0, "hits"] += 1
    frame.to_csv(table, index=False)
    changed = run("sweep", "--check", study)
    assert changed.code == 1
    assert "hits differs in 1 of 9 rows" in changed.err

    study.write_text(STUDY.replace("above = 0", "below = 0"))
    failing = run("sweep", "--check", study)
    assert failing.code == 1
    assert "does not hold  Belady beats random" in failing.out
    assert "a claim does not hold" in failing.err
    # Without --check a claim that does not hold is a finding, not a failure.
    assert run("sweep", study).code == 0


def test_a_fetched_trace_is_found_in_its_folder(study, monkeypatch):
    monkeypatch.delenv("TRACEKIT_TRACES", raising=False)
    text = STUDY.replace('file = "small.trace"', 'file = "small.trace"\nsource = "the moon"')
    other = study.parent / "elsewhere" / "study.toml"
    other.parent.mkdir()
    other.write_text(text)
    with pytest.raises(TracekitError, match="get it from the moon, and name the folder"):
        sweep(other)
    with pytest.raises(TracekitError, match=f"It is not in {other.parent}"):
        sweep(other, traces=other.parent)
    assert sweep(other, traces=study.parent).all_claims_hold
    monkeypatch.setenv("TRACEKIT_TRACES", str(study.parent))
    assert sweep(other).all_claims_hold
    assert run("sweep", other).code == 0


RESULT = pd.DataFrame(
    {
        "trace": ["a", "a", "a", "b"],
        "policy": ["lru", "lru", "best", "lru"],
        "cache_bytes": [1, 2, 2, 1],
        "rate": [0.25, 0.5, 0.75, np.nan],
    }
)
ON_A = {"trace": "a", "policy": "lru"}


@pytest.mark.parametrize(
    ("test", "holds", "summary"),
    [
        ({"of": ON_A, "equals": [0.25, 0.5]}, True, "0.25 to 0.50 (2 rows)"),
        (
            {"of": ON_A, "equals": [0.25, 0.6]},
            False,
            "0.25 to 0.50 (2 rows, 1 of them against it); row 2 is 0.50, not 0.60",
        ),
        ({"of": ON_A, "equals": [0.3, 0.45], "within": 0.06}, True, "0.25 to 0.50 (2 rows)"),
        ({"of": ON_A, "at_least": 0.25, "at_most": 0.5}, True, "0.25 to 0.50 (2 rows)"),
        ({"of": ON_A, "above": 0.25}, False, "0.25 to 0.50 (2 rows, 1 of them against it)"),
        ({"of": ON_A, "below": 0.5}, False, "0.25 to 0.50 (2 rows, 1 of them against it)"),
        ({"of": {"cache_bytes": 2, "policy": "lru"}, "equals": 0.5}, True, "0.50"),
        (
            {"of": {"policy": "best"}, "minus": {"policy": "lru"}, "unit": "percent", "above": 0},
            True,
            "25.00 points",
        ),
        (
            {"of": {"policy": "best"}, "over": {"policy": "lru"}, "equals": 1.5, "decimals": 1},
            True,
            "1.5",
        ),
        ({"of": {"policy": "best"}, "unit": "percent", "equals": 75}, True, "75.00 %"),
        ({"of": {"trace": "b"}, "at_least": 0}, False, "there is no figure"),
    ],
)
def test_claims(test, holds, summary):
    verdict = decide(Claim("it is so", "rate", **test), RESULT)
    assert (verdict.holds, verdict.summary) == (holds, summary)


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        ({"of": {"policy": "mru"}, "above": 0}, "is about no row"),
        ({"of": {"colour": "red"}, "above": 0}, "names a column 'colour'"),
        ({"of": {"trace": "b"}, "minus": {"policy": "best"}, "above": 0}, "with 0 rows"),
        ({"of": ON_A, "equals": [1]}, "gives 1 values for 2 rows"),
    ],
)
def test_a_claim_about_nothing_is_refused(test, sentence):
    with pytest.raises(UsageError, match=sentence):
        decide(Claim("it is so", "rate", **test), RESULT)
    with pytest.raises(UsageError, match="names a figure 'price'"):
        decide(Claim("it is so", "price", ON_A, above=0), RESULT)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("title =", "titel ="), "a study has no 'titel'"),
        (('title = "A study"', ""), "lacks 'title'; add it"),
        (("[traces.small]", "[traces.small"), "is not a study"),
        (('file = "small.trace"', ""), r"\[traces.small\] lacks 'file'; add it"),
        (("cache_cycles = [0.5, 2]", ""), r"\[\[run\]\] 1: policies need budgets in one unit"),
        (("seeds =", "cache_mib = [1]\nseeds ="), "policies need budgets in one unit"),
        (('predictors = ["prev-token"]', ""), "needs either policies or predictors"),
        (("predictors =", 'traces = ["big"]\npredictors ='), "names a trace 'big'"),
        (("seeds =", "sedes ="), r"\[\[run\]\] 1 has no 'sedes'; it may have"),
        (("equals = 0", ""), r"\[\[claim\]\] 1 claims nothing"),
        (('unit = "percent"', 'unit = "furlong"'), "has no unit 'furlong'"),
        (("minus =", "over = { seed = 0 }\nminus ="), "has both minus and over"),
    ],
)
def test_a_wrong_study_is_refused(study, change, sentence):
    text = STUDY.replace(*change, 1)
    assert text != STUDY
    study.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        read_study(study)
    failed = run("sweep", study)
    assert failed.code == 2
    assert failed.out == ""


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_study_claims_something_and_has_its_result(path):
    study = read_study(path)
    assert study.claims
    assert study.about
    assert study.result_path.exists()
    assert all(spec.source for spec in study.measured.values())
    for trace in study.traces.values():
        assert trace.source or trace.file.startswith("bundled:")


@pytest.mark.parametrize(
    "path",
    slow_where(SHIPPED, lambda path: path.stem in LONG),
    ids=lambda path: path.stem,
)
def test_a_shipped_study_comes_out_as_committed(path, request):
    study = read_study(path)
    folder = None
    if any(trace.source for trace in study.traces.values()):
        folder = request.getfixturevalue("phone_traces") / "traces"
    if study.measured:
        folder = request.getfixturevalue("phone_traces") / "measured"
    result = sweep(study, folder)
    assert [str(verdict) for verdict in result.verdicts if not verdict.holds] == []
    assert result.differences(study.result_path) == []


def test_a_trace_of_a_study_is_not_overwritten_by_its_table(tmp_path):
    trace = tmp_path / "study.csv"  # where the table of study.toml goes
    write_csv(trace)
    before = trace.read_bytes()
    path = tmp_path / "study.toml"
    path.write_text(STUDY.replace("small.trace", trace.name))
    done = run("sweep", path)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"Error: {trace} is what the result is made from; use another name.\n"
    assert trace.read_bytes() == before


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ('"small.trace"', "7", "[traces.small]: file takes text, not 7."),
        ('["lru", "random", "belady"]', '"lru"', "policies takes a list of texts, not 'lru'."),
        ("[0.5, 2]", '["x"]', "cache_cycles takes a list of numbers, not ['x']."),
        ("[0.5, 2]", "[nan]", "cache_cycles takes a list of numbers, not [nan]."),
        ("seeds = [0, 1]", "seeds = 1.5", "seeds takes a list of whole numbers, not 1.5."),
        ("seeds = [0, 1]", f"seeds = {'9' * 5000}", "not a study: a number has too many digits."),
        ("seeds = [0, 1]", "seeds = []", "study.toml runs nothing; give it a trace"),
        (
            "equals = 0",
            'equals = "none"',
            "equals takes a number or a list of numbers, not 'none'.",
        ),
        ("equals = 0", "equals = inf", "equals takes a number or a list of numbers, not inf."),
        ("equals = 0", "equals = 0\ndecimals = -1", "decimals = -1 must be from 0 to 15."),
        ("equals = 0", f"equals = 0\ndecimals = {1 << 62}", "must be from 0 to 15."),
        ('figure = "hits_decode"', 'figure = "policy"', "is about 'policy', which is no number."),
        ('title = "A study"', "title = 1", "study.toml: title takes text, not 1."),
        ('title = "A study"', "title = [[[[", "is not a study: "),
        ("[[run]]\npolicies", "[run]\npolicies", "is not a study: "),
        ("[traces.small]", "[traces]", "traces takes a table of named tables of named"),
    ],
)
def test_a_value_of_another_type_is_refused(study, before, after, sentence):
    assert before in STUDY
    text = STUDY.replace(before, after)
    if after == "seeds = []":
        text = text.replace('[[run]]\npredictors = ["prev-token"]', "")
    study.write_text(text)
    with pytest.raises(UsageError, match=re.escape(sentence)):
        sweep(study)
