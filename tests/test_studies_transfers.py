"""Transfers of a study: measured runs that predict each other, and what is claimed of them."""

import numpy as np
import pandas as pd
import pytest
from cli_helpers import run

from tracekit.figures import MIB
from tracekit.studies import read_study, sweep
from tracekit.studies.claims import decide
from tracekit.studies.spec import Claim
from tracekit.timing import fit
from tracekit.trace import TracekitError, UsageError

STUDY = """
title = "Times"

[measured.here]
runs = "runs.csv"
tokens = "tokens.csv.gz"

[measured.here.facts]
cache_mib = "cache"
top_k = "k"
lossy = "dropped"

[[transfer]]
name = "sizes"
measured = "here"
calibrated = ["small", "large"]
predicted = ["small", "large", "other k", "dropping"]

[[transfer]]
name = "dropping all the same"
measured = "here"
calibrated = ["small"]
predicted = ["dropping"]
ignore = ["lossy"]
given = { ram_mib = 8000 }

[[claim]]
says = "the typical token is off by 5 % at most in the median"
figure = "typical_off"
of = { is_refused = false }
take = "median"
unit = "percent"
at_most = 5

[[claim]]
says = "another k is refused"
figure = "is_refused"
of = { predicted = "other k" }
equals = 1
"""


@pytest.fixture
def study(tmp_path):
    rng = np.random.default_rng(0)
    tokens = []
    for name, mib in (("small", 60), ("large", 45), ("other k", 50), ("dropping", 50)):
        read = rng.uniform(0.4, 1.6, 100) * mib * MIB
        wall = 80 + 1.5 * read / MIB + rng.normal(0, 2, 100)
        tokens.append(pd.DataFrame({"run": name, "wall_ms": wall, "read_bytes": read}))
    pd.concat(tokens).to_csv(tmp_path / "tokens.csv.gz", index=False)
    (tmp_path / "runs.csv").write_text(
        "run,cache,k,dropped\nsmall,1000,8,0\nlarge,2000,8,0\nother k,1000,6,0\n"
        "dropping,1000,8,0.75\n"
    )
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return path


def test_pairs_are_predicted_from_bytes_and_facts(study):
    result = sweep(study)
    frame = result.frame
    assert list(frame.columns[:4]) == ["trace", "transfer", "calibrated", "predicted"]
    assert len(frame) == 7
    assert result.all_claims_hold
    assert result.verdicts[1].summary == "1.00 (2 rows)"
    assert result.verdicts[0].summary.startswith("median ")
    assert result.verdicts[0].summary.endswith(" of 3 rows")
    first = frame.iloc[0]
    tokens = dict(iter(pd.read_csv(study.parent / "tokens.csv.gz").groupby("run")))
    small, large = tokens["small"], tokens["large"]
    f = fit(wall_ms=small.wall_ms, read_bytes=small.read_bytes)
    p = f.predict(read_bytes=large.read_bytes)
    assert (first.calibrated, first.predicted) == ("small", "large")
    assert (first.typical_ms, first.mean_ms) == (p.typical_ms, p.mean_ms)
    assert first.typical_off == pytest.approx(abs(p.typical_ms / large.wall_ms.median() - 1))
    assert first.mean_tok_s_off == pytest.approx(abs(large.wall_ms.mean() / p.mean_ms - 1))
    refused = frame[frame["is_refused"]]
    assert set(refused["predicted"]) == {"other k", "dropping"}
    assert refused["refusals"].str.contains("do not carry over").all()
    assert not frame.iloc[-1]["is_refused"]  # the same pair, where dropping is not compared


def test_a_result_is_written_checked_and_replaced(study):
    assert run("sweep", study).code == 0
    assert run("sweep", "--check", study).code == 0
    study.write_text(STUDY.replace('"other k", "dropping"]', '"other k"]'))
    assert "it was different before" in run("sweep", study).err


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            'measured = "here"',
            'measured = "there"',
            "names measured runs 'there'; there are 'here'",
        ),
        ('["lossy"]', '["loss"]', "has no fact 'loss'; it may have 'cache_mib'"),
        ('take = "median"', 'take = "mode"', "cannot take 'mode'; it may take 'mean', 'median'"),
        (
            '"other k", "dropping"]',
            '"gone"]',
            "names a run 'gone', which the tables of here do not",
        ),
    ],
)
def test_a_wrong_transfer_is_refused(study, before, after, sentence):
    assert before in STUDY
    study.write_text(STUDY.replace(before, after, 1))
    with pytest.raises(UsageError, match=sentence):
        sweep(study)


def test_tables_that_lack_something_are_one_sentence(study):
    (study.parent / "runs.csv").write_text("run,cache\nsmall,1000\n")
    with pytest.raises(
        TracekitError, match=r"runs.csv has no column 'dropped', 'k'; it has 'cache'"
    ):
        sweep(study)
    (study.parent / "tokens.csv.gz").write_bytes(b"no gzip")
    done = run("sweep", study)
    assert (done.code, done.err.count("\n")) == (1, 1)
    study.write_text(STUDY.replace('gz"\n', 'gz"\nsource = "the moon"\n', 1))
    with pytest.raises(TracekitError, match=r"needs runs.csv and tokens.csv.gz, which do not come"):
        sweep(read_study(study))


def test_a_claim_about_the_mean_of_all_rows():
    rows = pd.DataFrame({"trace": "a", "good": [True, True, True, False]})
    verdict = decide(Claim("most", "good", {"trace": "a"}, take="mean", at_least=0.75), rows)
    assert (verdict.holds, verdict.summary) == (True, "mean 0.75 of 4 rows")
    assert not decide(Claim("most", "good", {"trace": "a"}, take="mean", above=0.8), rows).holds
