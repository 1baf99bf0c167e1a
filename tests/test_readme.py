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


def test_the_prediction_starts_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    # The last digit may differ between processors: a matrix product's rounding decides near ties.
    monkeypatch.chdir(ROOT)
    command, output = SHOWN[1]
    first, shown = run(*arguments(command)).out.splitlines()[0], output.splitlines()[0]
    assert re.sub(r"[\d.]+", "", first) == re.sub(r"[\d.]+", "", shown)
    figures = [list(map(float, re.findall(r"[\d.]+", line))) for line in (first, shown)]
    assert figures[0] == pytest.approx(figures[1], abs=0.1)


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
