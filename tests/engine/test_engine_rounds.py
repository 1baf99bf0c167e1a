"""``tracekit record --rounds``: two configurations in turns, and the command that compares them."""

import shlex
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tracekit.cli import record_rounds
from tracekit.cli.app import app
from tracekit.trace import Trace
from tracekit_engine import Session

ORDER = ["a1", "b1", "b2", "a2"]


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert "Traceback" not in result.output
    return result


@pytest.fixture
def base(model: Path, tmp_path: Path) -> list[object]:
    """What all runs in turns here are given."""
    given = ["-p", "abcdef", "-n", "20", "--ignore-eos", "--stream", "--cache-mib", "0.05"]
    return ["record", model, *given, "--pause", "0", "-o", tmp_path / "my run.trace"]


def paths(folder: Path, names: list[str] = ORDER) -> list[Path]:
    return [folder / f"my run-{name}.trace" for name in names]


@pytest.mark.slow
def test_a_b_b_a(base: list[object], tmp_path: Path) -> None:
    done = run(*base, "--rounds", "2", "--versus", "--cache-mib 0.1 --io-threads 2")
    assert (done.exit_code, done.stdout) == (0, "")
    traces = [Trace.open(path) for path in paths(tmp_path)]
    assert len(list(tmp_path.glob("my run-*"))) == 4
    engines = [trace.facts.engine for trace in traces]
    sizes = [round(engine.cache_bytes / 2**20, 3) for engine in engines]
    assert sizes == [0.05, 0.1, 0.1, 0.05]
    assert [engine.io_threads for engine in engines] == [4, 2, 2, 4]
    created = [trace.facts.created for trace in traces]
    assert created == sorted(created)
    assert len({trace.facts.notes["chunk"] for trace in traces}) == 1
    command = done.stderr.splitlines()[-1]
    assert command == shlex.join(["tracekit", "compare", *map(str, paths(tmp_path))])
    compared = run(*shlex.split(command)[1:])
    assert compared.exit_code == 0
    rows = [line for line in compared.stdout.splitlines() if "my run-" in line]
    assert [row.split(".trace")[1].split()[0] for row in rows] == ["A", "B", "B", "A"]


@pytest.mark.slow
def test_the_same_configuration_as_a_check(base: list[object], tmp_path: Path) -> None:
    assert run(*base, "--rounds", "1", "--versus", "").exit_code == 0
    one, other = (Trace.open(path) for path in paths(tmp_path, ["a1", "b1"]))
    assert one.facts.engine == other.facts.engine
    assert one.digest == other.digest


@pytest.mark.slow
def test_streaming_against_none(model: Path, tmp_path: Path) -> None:
    """A small cache takes short chunks; both must, or their sums round in another order."""
    given = ["record", model, "-p", "abcdef" * 4, "-n", "3", "--ignore-eos", "--pause", "0"]
    given += ["--rounds", "1", "-o", tmp_path / "my run.trace"]
    assert run(*given, "--versus", "--stream --cache-mib=0.04").exit_code == 0
    resident, streamed = (Trace.open(path) for path in paths(tmp_path, ["a1", "b1"]))
    assert resident.facts.engine.cache_bytes is None
    assert streamed.facts.engine.cache_bytes is not None
    assert resident.facts.notes["chunk"] == streamed.facts.notes["chunk"] < 24
    experts = [trace.routing(["experts"])["experts"] for trace in (resident, streamed)]
    assert (experts[0] == experts[1]).all()


def test_nothing_is_recorded_where_a_trace_is_there(base: list[object], tmp_path: Path) -> None:
    third = paths(tmp_path)[2]
    third.mkdir()
    done = run(*base, "--rounds", "2", "--versus", "")
    assert done.exit_code == 2
    assert done.stderr == f"Error: {third} exists; use --force to overwrite it, or another name.\n"
    assert [path.name for path in tmp_path.glob("my run*")] == [third.name]


@pytest.mark.slow
def test_force_overwrites_all(base: list[object], tmp_path: Path) -> None:
    again = [*base, "--rounds", "1", "--versus", "", "--force"]
    assert run(*again).exit_code == 0
    before = [Trace.open(path).facts.created for path in paths(tmp_path, ["a1", "b1"])]
    time.sleep(1)
    assert run(*again).exit_code == 0
    after = [Trace.open(path).facts.created for path in paths(tmp_path, ["a1", "b1"])]
    assert all(x < y for x, y in zip(before, after, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_fails_leaves_those_before_it(
    base: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    evaluate, passes = Session.evaluate, iter(range(1000))

    def breaking(*given, **how):
        if next(passes) == 65:
            raise error
        return evaluate(*given, **how)

    monkeypatch.setattr(Session, "evaluate", breaking)
    done = CliRunner().invoke(app, [*map(str, base), "--rounds", "2", "--versus", ""])
    assert done.exit_code
    finished = [path for path in paths(tmp_path) if path.exists() and Trace.open(path).complete]
    assert 0 < len(finished) < 4
    assert finished == paths(tmp_path)[: len(finished)]
    assert f"Finished before: {finished[0]}" in done.stderr
    assert "tracekit compare" not in done.stderr


def test_it_cools_down_between_runs(
    base: list[object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(record_rounds.time, "sleep", slept.append)
    done = run(*base, "--rounds", "1", "--versus", "", "--pause", "2.5")
    assert slept == [0, 2.5]
    assert "Run 2 of 2, configuration B begins in 2.5 s." in done.stderr
    command = ["tracekit", "compare", *map(str, paths(tmp_path, ["a1", "b1"]))]
    assert done.stderr.splitlines()[-1] == shlex.join(command)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("run.trace", ["run-a1.trace", "run-b1.trace", "run-b2.trace"]),
        ("x/run", ["x/run-a1", "x/run-b1", "x/run-b2"]),
        ("v1.5", ["v1.5-a1", "v1.5-b1", "v1.5-b2"]),
    ],
)
def test_names(given: str, names: list[str]) -> None:
    rounds = record_rounds.Rounds(4, {}, 0)
    runs = rounds.outputs(Path(given))
    assert [letter for letter, _ in runs] == [*"ABBAABBA"]
    assert [str(path) for _, path in runs[:3]] == names
    assert len({path for _, path in runs}) == 8


BAD = {
    "no rounds": (["--versus", ""], "--versus is for runs in turns; add --rounds N"),
    "a pause alone": (["--pause", "3"], "--pause is for runs in turns"),
    "no second": (
        ["--rounds", "2"],
        "--rounds takes turns with a second configuration; add --versus",
    ),
    "no round": (["--rounds", "0", "--versus", ""], "whole number from 1 to 1000, not 0"),
    "half a round": (
        ["--rounds", "1.5", "--versus", ""],
        "--rounds takes a whole number, not '1.5'",
    ),
    "no pause": (
        ["--rounds", "2", "--versus", "", "--pause", "-1"],
        "--pause takes 0 to 86400 seconds",
    ),
    "text": (["--rounds", "2", "--versus", "", "--text"], "--text prints the text of one run"),
    "no change": (
        ["--rounds", "2", "--versus", "--cache-mib 0.05"],
        "--versus '--cache-mib 0.05' changes nothing; to record the same configuration twice",
    ),
    "other tokens": (["--rounds", "2", "--versus", "--temp 0.5"], "--versus cannot change --temp"),
    "other prompts": (["--rounds", "2", "--versus", "-p x"], "--versus cannot change --prompt"),
    "another name": (["--rounds", "2", "--versus", "-o x"], "--versus cannot change --output"),
    "another model": (["--rounds", "2", "--versus", "m.gguf"], "--versus cannot change the model"),
    "fewer experts": (
        ["--rounds", "2", "--versus", "--n-expert-used 1"],
        "cannot change --n-expert-used",
    ),
    "itself": (["--rounds", "2", "--versus", "--rounds 2"], "--versus cannot change --rounds"),
    "no option": (["--rounds", "2", "--versus", "--cash-mib 2"], "No such option: --cash-mib"),
    "no value": (
        ["--rounds", "2", "--versus", "--cache-mib"],
        "'--cache-mib' requires an argument",
    ),
    "no name": (
        ["--rounds", "2", "--versus", "", "-o", ".."],
        ".. is no name for traces; give one",
    ),
    "open quotes": (["--rounds", "2", "--versus", "--cache-mib '2"], "close its quotes"),
    "help": (["--rounds", "2", "--versus", "--help"], "--help is for the command itself"),
    "no number": (
        ["--rounds", "2", "--versus", "--io-threads x"],
        "--versus: --io-threads takes a whole",
    ),
    "no size": (["--rounds", "2", "--versus", "--cache-mib x"], "--cache-mib takes a size in MiB"),
    "too small": (["--rounds", "2", "--versus", "--cache-mib 0"], "is too small"),
    "a size that varies": (
        ["--rounds", "2", "--versus", "--cache-mib auto"],
        "differs from run to run",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_one_sentence(name: str, base: list[object], tmp_path: Path) -> None:
    arguments, sentence = BAD[name]
    given = base if "--rounds" in arguments else [x for x in base if x not in ("--pause", "0")]
    result = run(*given, *arguments)
    assert result.exit_code == 2
    assert sentence in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not list(tmp_path.glob("my run*"))


def test_transformers_has_no_rounds(base: list[object], tmp_path: Path) -> None:
    given = ["record", tmp_path, "--backend", "transformers", "-p", "x", "-o", tmp_path / "x.trace"]
    result = run(*given, "--rounds", "2")
    assert result.exit_code == 2
    assert "--rounds is an option of llama.cpp" in result.stderr
