"""``tracekit plot``: files it writes, and what it refuses."""

import pandas as pd
import pytest
from cli_helpers import run, write_csv
from families import slow_unless

from tracekit import analysis
from tracekit.formats import open_any
from tracekit.plots.kinds import KINDS


@pytest.fixture
def trace(tmp_path):
    return write_csv(tmp_path / "small.csv")


def test_list_names_every_kind():
    done = run("plot", "--list")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines()] == list(KINDS)


@pytest.mark.parametrize(
    ("name", "begins"),
    slow_unless(
        [("x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("x.PDF", b"%PDF")], ("x.svg", b"<?xml")
    ),
)
def test_a_picture_by_its_ending_and_the_same_each_time(trace, tmp_path, name, begins):
    out = tmp_path / name
    done = run("plot", "curves", trace, "-o", out, "--cache-mib", "2,4")
    assert (done.code, done.out) == (0, "")
    assert done.err == f"Wrote {out}.\n"
    first = out.read_bytes()
    assert first.startswith(begins)
    assert run("plot", "curves", trace, "-o", out, "--cache-mib", "2,4", "--force").code == 0
    assert out.read_bytes() == first


def test_the_numbers_behind_a_picture(trace, tmp_path):
    out = tmp_path / "x.csv"
    assert (
        run("plot", "timeline", trace, "-o", out, "--policy", "lfu", "--cache-mib", "3").code == 0
    )
    expected = analysis.residency_timeline(open_any(trace), "lfu", 3 << 20).assign(params="")
    read = pd.read_csv(out, keep_default_na=False)
    pd.testing.assert_frame_equal(read, expected, check_dtype=False)
    out = tmp_path / "x.parquet"
    assert run("plot", "popularity", trace, "-o", out).code == 0
    expected = analysis.expert_popularity(open_any(trace))
    pd.testing.assert_frame_equal(pd.read_parquet(out), expected, check_dtype=False)


def test_parameters_reach_the_policy(trace, tmp_path):
    reads = []
    for keep in (1, 2):
        out = tmp_path / f"{keep}.csv"
        param = f"fewer-experts.keep={keep}"
        how = ("--policy", "fewer-experts", "--param", param, "--cache-mib", "3")
        assert run("plot", "read-bytes", trace, "-o", out, *how).code == 0
        reads.append(pd.read_csv(out)["lookups"].sum())
    assert reads[0] < reads[1]


def test_several_values_of_a_parameter_are_variants(trace, tmp_path):
    out = tmp_path / "x.csv"
    how = ("--param", "retention.predictor=static-hot,oracle", "--cache-mib", "3,5")
    done = run("plot", "gains", trace, "-o", out, *how)
    assert (done.code, done.err) == (0, f"Wrote {out}.\n")
    frame = pd.read_csv(out)
    assert frame["params"].tolist() == [
        f"predictor={name} horizon=2 base=lru"
        for name in ("static-hot", "oracle")
        for _ in range(2)
    ]
    assert frame["cache_bytes"].tolist() == 2 * [3 << 20, 5 << 20]


def test_the_seed_reaches_the_policy(trace, tmp_path):
    out = tmp_path / "x.csv"
    how = ("--policy", "random", "--seed", "7", "--cache-mib", "3")
    assert run("plot", "timeline", trace, "-o", out, *how).code == 0
    assert set(pd.read_csv(out)["params"]) == {"seed=7"}


def test_a_picture_says_what_it_is_of(trace, tmp_path):
    out = tmp_path / "x.svg"
    assert run("plot", "popularity", trace, "-o", out).code == 0
    assert "<!-- small, small.csv -->" in out.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_name_that_the_font_lacks_is_drawn_without_a_word(tmp_path):
    trace = write_csv(tmp_path / "名前 $x$.csv")
    done = run("plot", "popularity", trace, "-o", tmp_path / "x.png")
    assert (done.code, done.err) == (0, f"Wrote {tmp_path / 'x.png'}.\n")


@pytest.mark.parametrize(
    ("args", "code", "sentence"),
    [
        ((), 2, "plot needs a KIND and a TRACE; `tracekit plot --list` names the kinds."),
        (("curves", "TRACE"), 2, "plot needs a file to draw into, for instance -o curves.png."),
        (
            ("curves", "TRACE", "-o", "x.gif"),
            2,
            "cannot write 'x.gif'; its name must end in one of",
        ),
        (("curves", "TRACE", "-o", "x"), 2, "cannot write 'x'; its name must end in one of"),
        (("curvs", "TRACE", "-o", "x.png"), 2, "No plot is called 'curvs'; did you mean 'curves'?"),
        (
            ("horizon", "TRACE", "-o", "x.png", "--predictor", "stale-gate"),
            1,
            "stale-gate needs the column 'gate_input'",
        ),
        (("timeline", "TRACE", "-o", "x.png", "--policy", "lru,lfu"), 2, "one policy, not 2"),
        (("curves", "TRACE", "-o", "x.png", "--policy", "lur"), 2, "did you mean 'lru'?"),
        (("curves", "TRACE", "-o", "x.png", "--cache-mib", "-1"), 2, "takes sizes in MiB from 0"),
        (("recall", "TRACE", "-o", "x.png", "--named", "0"), 2, "a whole number, 1 or more"),
        (("recall", "TRACE", "-o", "x.png", "--named", "9"), 2, "9 experts cannot be named"),
        (("horizon", "TRACE", "-o", "x.png", "--horizon", "two"), 2, "1 or more, not 'two'"),
        (
            ("curves", "TRACE", "-o", "x.png", "--param", "random.seed=1"),
            2,
            "--param is set for 'random', which is not drawn here; name it in --policy.",
        ),
        (("TRACE", "curves", "-o", "x.png"), 2, "The kind comes first: tracekit plot curves "),
        (
            ("popularity", "TRACE", "-o", "x.png", "--cache-mib", "3"),
            2,
            "plot popularity takes no --cache-mib; leave it out.",
        ),
        (
            (
                "gains",
                "TRACE",
                "-o",
                "x.png",
                "--policy",
                "prefetch",
                "--param",
                "prefetch.horizon=1",
            ),
            1,
            "What a policy can act on here, by its parameter predictor: ",
        ),
    ],
)
def test_what_is_refused(trace, tmp_path, monkeypatch, args, code, sentence):
    monkeypatch.chdir(tmp_path)
    done = run("plot", *(trace if arg == "TRACE" else arg for arg in args))
    assert done.code == code
    assert sentence in done.err
    assert done.out == ""
    assert list(tmp_path.iterdir()) == [trace]


def test_an_existing_picture_is_kept(trace, tmp_path):
    out = tmp_path / "x.png"
    out.write_text("mine")
    done = run("plot", "curves", trace, "-o", out)
    assert done.code == 2
    assert done.err == f"Error: {out} exists; use --force to overwrite it, or another name.\n"
    assert out.read_text() == "mine"


@pytest.mark.slow
def test_what_was_left_out_is_said_on_stderr(trace, tmp_path):
    done = run("plot", "predictability", trace, "-o", tmp_path / "x.png")
    assert done.code == 0
    assert "Left out: stale-gate needs the column 'gate_input'" in done.err
    quiet = run("plot", "predictability", trace, "-o", tmp_path / "y.png", "-q")
    assert quiet.err == ""
