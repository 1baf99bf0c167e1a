"""What came out of comparing a recording with a replay: found once, kept, said by every command."""

import json
from dataclasses import replace

import pytest
from cli_helpers import run
from exact_engine import session
from recorded_runs import BUDGET, plain, recorded, residency_of, with_residency

from tracekit.formats import open_any
from tracekit.replaying import agreement as agreements
from tracekit.replaying import replay
from tracekit.trace import Trace, TraceError, UsageError, synthesize, write_trace
from tracekit.trace.agreement import Agreement
from tracekit.trace.folder import TraceFolder, keep_agreement

SAID = "differs from the recording in "


@pytest.fixture
def falsified(tmp_path):
    """A CSV of an exact engine whose budget was changed by hand."""
    written = session(5)
    wrong = written.text.replace(f"cache_bytes={written.budget}", "cache_bytes=5000")
    assert wrong != written.text
    path = tmp_path / "run.csv"
    path.write_text(wrong)
    return path


def commands(trace, tmp_path) -> list[list]:
    study = tmp_path / "study.toml"
    study.write_text(
        f'title = "t"\nabout = "a"\n[traces.x]\nfile = "{trace}"\n'
        '[[run]]\npolicies = ["lru"]\ncache_mib = [0.01]\n'
    )
    return [
        ["info", trace],
        ["replay", trace, "--policy", "lru", "--cache-mib", "0.01"],
        ["predict", trace, "--predictor", "prev-token"],
        ["plot", "popularity", trace, "-o", tmp_path / "p.csv", "--force"],
        ["sweep", study],
    ]


@pytest.mark.slow
def test_every_command_says_once_that_a_file_differs(falsified, tmp_path):
    for command in commands(falsified, tmp_path):
        done = run(*command)
        assert done.code == 0, done.err
        assert done.err.count(SAID) == 1, command
        said = next(line for line in done.err.splitlines() if SAID in line)
        assert said.startswith(f"Warning: {falsified}: a replay with lru at ")
    for command in commands(falsified, tmp_path)[:3]:
        document = json.loads(run(*command, "--format", "json").out)
        assert any(SAID in note for note in document.get("notes", document.get("warnings")))


def test_an_imported_trace_says_it_without_comparing_again(falsified, tmp_path, monkeypatch):
    path = tmp_path / "run.trace"
    done = run("import", falsified, "-o", path)
    assert done.err.count(SAID) == 1
    kept = json.loads((path / "trace.json").read_text())["agreement"]
    assert kept["policy"] == "lru"
    assert kept["n_mismatched"] > 0
    assert kept["budget_bytes"] == 5000

    def compares(*_):
        raise AssertionError("it was compared again")

    monkeypatch.setattr(agreements, "verify", compares)
    for command in commands(path, tmp_path):
        done = run(*command)
        assert (done.code, done.err.count(SAID)) == (0, 1), command


@pytest.mark.slow
def test_the_report_says_it(falsified, tmp_path):
    page = tmp_path / "r.html"
    done = run("report", falsified, "-o", page)
    assert (done.code, done.err.count(SAID)) == (0, 1)
    assert SAID in page.read_text()


def test_a_replay_in_python_notes_it(falsified):
    result = replay(open_any(falsified), "lru", cache_mib=1)
    assert [SAID in note for note in result.notes].count(True) == 1
    assert SAID not in result.to_text()  # it was said when the trace was opened


@pytest.fixture
def traced(tmp_path):
    """A trace that differs from its replay, and that nobody has verified."""
    path = tmp_path / "run.trace"
    write_trace(recorded(plain(), ran=30 << 20), path)
    return path


def test_info_verifies_and_keeps(traced):
    assert "agreement" in (traced / "trace.json").read_text()
    assert json.loads((traced / "trace.json").read_text())["agreement"] is None
    before = Trace.open(traced)
    assert before.warnings == []
    done = run("info", traced, "--verify")
    assert done.code == 0
    assert done.err.count(SAID) == 1
    assert f"Kept in {traced}: " in done.err
    after = Trace.open(traced)
    assert after.digest == before.digest
    assert after.facts == replace(before.facts, agreement=after.facts.agreement)
    (warning,) = after.warnings
    assert warning == after.facts.agreement.sentence(str(traced))
    (line,) = [line for line in done.out.splitlines() if line.startswith("replayed")]
    first = after.facts.agreement.first_mismatch
    assert line == (
        f"replayed  lru at 20 MiB: {after.facts.agreement.compared} differ from the recording, the "
        f"first at turn 0, pass {first['pass']}, step {first['step']}, layer {first['layer']}, "
        f"expert {first['expert']}: hit recorded, miss replayed; a budget of 30 MiB gives what was "
        "recorded"
    )
    document = json.loads(run("info", traced, "--format", "json").out)
    assert document["agreement"]["likely_reason"] == "a budget of 30 MiB gives what was recorded"
    assert len(document["warnings"]) == 1


def test_a_file_of_another_tool_has_no_place_for_it(falsified):
    before = falsified.read_bytes()
    done = run("info", falsified, "--verify")
    assert done.err.count(SAID) == 1
    assert (
        f"{falsified} has no place for it; `tracekit import` makes a trace that has.\n" in done.err
    )
    assert falsified.read_bytes() == before


def test_verifying_anew_replaces_what_was_kept(traced):
    run("info", traced, "--verify")
    write_trace(recorded(plain()), traced, force=True)
    keep_agreement(traced, Agreement("lru", BUDGET, n_lookups=9, n_mismatched=9))
    assert SAID in run("info", traced).err
    done = run("info", traced, "--verify")
    assert SAID not in done.err
    assert "none of " in done.err
    assert Trace.open(traced).warnings == []


def test_an_agreement_of_another_budget_is_not_taken(traced):
    run("info", traced, "--verify")
    facts = json.loads((traced / "trace.json").read_text())
    facts["engine"]["cache_bytes"] = 30 << 20
    (traced / "trace.json").write_text(json.dumps(facts))
    assert Trace.open(traced).facts.current_agreement is None
    done = run("info", traced)
    assert SAID not in done.err
    assert "lru at 30 MiB: none of " in done.out


def test_info_says_why_it_cannot_compare(tmp_path):
    trace = with_residency(plain(), residency_of(plain(), "lru", BUDGET), None)
    path = tmp_path / "run.trace"
    write_trace(trace, path)
    done = run("info", path, "--verify")
    assert f"{path} cannot be verified: the size of the engine's cache is not known.\n" in done.err
    assert (
        "replayed  not compared with the recording: the size of the engine's cache is not"
        in done.out
    )
    write_trace(synthesize(), tmp_path / "plain.trace")
    assert "replayed" not in run("info", tmp_path / "plain.trace").out


def test_import_names_the_budget_that_fits(tmp_path, falsified):
    """The file gives none; in many sessions one can be told."""
    written = session(5)
    path = tmp_path / "run.csv"
    path.write_text("".join(f"{line}\n" for line in written.lines if "cache_bytes" not in line))
    said = run("import", path, "-o", tmp_path / "x.trace").err
    assert "how large the engine's cache was; give --cache-mib " in said
    size = said.split("--cache-mib ")[1].split(",")[0]
    done = run("import", path, "-o", tmp_path / "y.trace", "--cache-mib", size)
    assert SAID not in done.err
    assert "none of " in run("info", tmp_path / "y.trace").out


def test_a_trace_that_is_being_written_is_not_changed(traced):
    agreement = agreements.verify(Trace.open(traced))
    with TraceFolder(traced, force=True) as folder:
        (folder.now / "trace.json").write_text((traced / "trace.json").read_text())
        folder.publish()
        with pytest.raises(UsageError, match="is being written by another command"):
            keep_agreement(traced, agreement)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"policy": "lru"}, "agreement lacks 'budget_bytes'"),
        ({"policy": "lru", "budget_bytes": 1, "n_mismatched": 3}, "3 of 0 cannot differ"),
        (
            {"policy": "lru", "budget_bytes": 1, "n_lookups": -1, "n_mismatched": -1},
            "-1 of -1 cannot differ",
        ),
        ({"policy": "lru", "budget_bytes": "x"}, "budget_bytes takes a whole number"),
        (3, "a JSON object is missing"),
    ],
)
def test_an_agreement_that_is_none_is_refused(traced, value, fault):
    facts = json.loads((traced / "trace.json").read_text())
    (traced / "trace.json").write_text(json.dumps({**facts, "agreement": value}))
    with pytest.raises(TraceError, match=fault):
        Trace.open(traced)
