"""The README's commands run, and print what it shows."""

import re
import shlex
from pathlib import Path

import pytest
from cli_helpers import run

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
SHOWN = re.findall(r"```\n(tracekit [^\n]+)\n```\n\n```text\n(.*?)\n```", README, re.DOTALL)


def arguments(command: str) -> list[str]:
    return shlex.split(command, comments=True)[1:]


def test_the_replay_prints_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command, output = SHOWN[0]
    assert run(*arguments(command)).out.rstrip() == output


@pytest.mark.parametrize(("command", "output"), SHOWN[1:], ids=["predict", "acting"])
def test_what_predictors_do_is_shown(
    monkeypatch: pytest.MonkeyPatch, command: str, output: str
) -> None:
    # The last digits may differ between processors: a matrix product's rounding decides near ties.
    monkeypatch.chdir(ROOT)
    shown = output.removesuffix("…").rstrip().splitlines()
    printed = run(*arguments(command)).out.splitlines()[: len(shown)]
    assert _without_figures(printed) == _without_figures(shown)
    figures = [list(map(float, re.findall(r"\d+\.?\d*", "\n".join(s)))) for s in (printed, shown)]
    assert figures[0] == pytest.approx(figures[1], rel=0.01, abs=0.2)


def _without_figures(lines: list[str]) -> list[list[str]]:
    return [re.sub(r"[-+]?\d+\.?\d*", "0", line).split() for line in lines]


def test_the_first_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    command = re.search(r"&& (tracekit replay data/[^\n]+)", README)[1]
    assert run(*arguments(command)).code == 0


def test_the_python_example_runs() -> None:
    code = re.search(r"```python\n(import tracekit\n.*?)```", README, re.DOTALL)[1]
    exec(compile(code, "README.md", "exec"), {})


def test_the_policy_shown_is_the_tested_example() -> None:
    example = (ROOT / "tests" / "examples" / "own_ring.py").read_text()
    assert f"```python\n{example}```" in README


def test_every_option_named_exists() -> None:
    for command in re.findall(r"^tracekit [^\n]+", README, re.MULTILINE):
        words = arguments(command)
        offered = run(words[0], "--help").out
        for word in words[1:]:
            if word.startswith("--"):
                assert word in offered, command
