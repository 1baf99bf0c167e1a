"""The recipes of CONTRIBUTING.md: pasted into a copy of the project, each works as it says."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

PARTS = ("pyproject.toml", "tracekit", "engine", "tests", "docs", "data/tiny-moe-64e.trace")
RECIPES = dict(
    re.findall(
        r"^## (A \w+)\n(.*?)(?=^## |\Z)",
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("# Recipes")[2],
        re.DOTALL | re.MULTILINE,
    )
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the project, without what is not needed to run it."""
    unneeded = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in PARTS:
        source, target = ROOT / part, tmp_path / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=unneeded)
        else:
            shutil.copy(source, target)
    return tmp_path


def paste(recipe: str, checkout: Path) -> list[Path]:
    """Do what a recipe says to every file it names; return the files."""
    found = re.findall(r"`([\w/]+\.py)`[^`]*:\n\n```python\n(.*?)```", recipe, re.DOTALL)
    for name, code in found:
        path = checkout / name
        if not path.exists():
            path.write_text(code, encoding="utf-8")
        elif code.startswith("from tracekit"):
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            end = max(n for n, line in enumerate(lines, 1) if line.startswith("from tracekit"))
            path.write_text("".join([*lines[:end], code, *lines[end:]]), encoding="utf-8")
        else:
            path.write_text(f"{path.read_text(encoding='utf-8')}\n\n{code}", encoding="utf-8")
    return [Path(name) for name, _ in found]


def commands_of(recipe: str) -> list[list[str]]:
    (block,) = re.findall(r"\n\n```\n(.*?)```", recipe, re.DOTALL)
    return [shlex.split(line) for line in block.splitlines()]


def test_there_are_four_recipes() -> None:
    assert list(RECIPES) == ["A policy", "A predictor", "A format", "A plot"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_works_when_pasted(name: str, checkout: Path) -> None:
    touched = paste(RECIPES[name], checkout)
    new = [path for path in touched if not (ROOT / path).exists()]
    assert len(new) == 1
    environment = {**os.environ, "PYTHONPATH": f"{checkout}:{checkout / 'engine'}"}
    commands = commands_of(RECIPES[name])
    assert [words[0] for words in commands[-3:]] == ["pytest", "python", "ruff"]
    # What was pasted also has the project's style and types.
    commands += [["ruff", "check", "."], ["ruff", "format", "--check", "."]]
    commands += [["mypy", "--follow-imports=silent", str(new[0])]]
    for program, *words in commands:
        module = [] if program == "python" else ["-m", program]
        done = subprocess.run(
            [sys.executable, *module, *words],
            cwd=checkout,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{program} {words}\n{done.stdout[-4000:]}{done.stderr}"
