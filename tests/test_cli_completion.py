"""What the shell completes: by the protocol that its script speaks, and in a real bash."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import shorten
from unittest.mock import patch

import pytest

from tracekit.cli import completion, main
from tracekit.plots.kinds import KINDS
from tracekit.policies import POLICIES
from tracekit.predictors import PREDICTORS

BUNDLED = "bundled:tiny-moe-64e.trace"
HEAVY = ("numpy", "pyarrow", "pandas", "numba", "matplotlib")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a trace, a file, a folder and studies."""
    for name in ("run.trace", "replays", ".hidden"):
        (tmp_path / name).mkdir()
    for name in ("big.csv", "replays/cliff.toml", "replays/cliff.csv", "replays/ring.toml"):
        (tmp_path / name).touch()
    return tmp_path


@pytest.fixture
def completed(folder, monkeypatch, capsys):
    """Ask for what completes the last of some words, as a shell's script does."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def ask(*words: str, shell: str = "bash") -> list[str]:
        asked = {
            "bash": {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)},
            "fish": {
                "_TYPER_COMPLETE_ARGS": " ".join(words),
                "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            },
            "zsh": {"_TYPER_COMPLETE_ARGS": " ".join(words)},
        }[shell]
        asked["_TRACEKIT_COMPLETE"] = f"complete_{shell}"
        with patch.dict(os.environ, asked), pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out.rstrip("\n").splitlines()

    return ask


@pytest.mark.parametrize(
    ("package", "registry"), [("policies", POLICIES), ("predictors", PREDICTORS)]
)
def test_the_names_in_the_source_are_those_that_are_registered(package, registry):
    assert dict(completion.registered(package)) == {cls.name: cls.summary for cls in registry}


def test_the_kinds_of_plot_in_the_source_are_those_that_are_registered():
    assert dict(completion.kinds("")) == {
        kind.name: shorten(kind.summary, 60, placeholder="…") for kind in KINDS.values()
    }


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["re"], ["record", "replay", "report"]),
        (["replay", "run.trace", "--pol"], ["--policy"]),
        (["replay", "run.trace", "--policy", "bel"], ["belady"]),
        (["replay", "run.trace", "--policy", "=", "bel"], ["belady"]),
        (["replay", "run.trace", "--policy", "belady,layer-l"], None),
        (["replay", "run.trace", "--policy", "layer-lru,layer-lr"], []),
        (["report", "run.trace", "--policy", "prev"], []),
        (["report", "run.trace", "--predictor", "prev"], ["prev-token"]),
        (["predict", "run.trace", "--predictor", "ctrl,prev"], ["ctrl,prev-token"]),
        (["predict", "run.trace", "--train", "bun"], [BUNDLED]),
        (["replay", "run.trace", "--format", "c"], ["csv"]),
        (["info", "b"], [BUNDLED, "big.csv"]),
        (["info", ""], [BUNDLED, "big.csv", "replays/", "run.trace"]),
        (["info", "bundled", ":"], ["tiny-moe-64e.trace"]),
        (["info", "bundled", ":", "tiny"], ["tiny-moe-64e.trace"]),
        (["info", "bundled:tiny"], [BUNDLED]),
        (["info", "r"], []),  # the shell completes files by itself
        (["plot", "timel"], ["timeline"]),
        (["plot", "timeline", "bun"], [BUNDLED]),
        (["sweep", "replays/"], ["replays/cliff.toml", "replays/ring.toml"]),
        (["sweep", "replays/ring.toml", "replays/cl"], ["replays/cliff.toml"]),
    ],
    ids=lambda value: " ".join(value) if value and value[0] != "belady" else "",
)
def test_bash(completed, words, found):
    if found is None:
        found = [f"belady,{name}" for name in ("layer-lfu", "layer-lru", "layer-lag")]
    assert completed("tracekit", *words) == found


def test_zsh_and_fish_are_told_what_a_name_means(completed):
    words = ("tracekit", "replay", "run.trace", "--policy", "lru,bela")
    (fish,) = completed(*words, shell="fish")
    (zsh,) = completed(*words, shell="zsh")
    word, means = fish.split("\t")
    assert word == "lru,belady"
    assert means.endswith("…")  # in one line
    assert POLICIES.find("belady").summary.startswith(means[:-1])
    assert zsh == f"""_arguments '*: :(("lru,belady":"{means}"))'"""
    assert completed("tracekit", "info", "bundled:t", shell="fish") == [
        f"{BUNDLED}\tcomes with tracekit"
    ]


@pytest.mark.slow  # a shell; the words that it asks for are tested in this process
def test_the_script_completes_in_bash(folder):
    program = folder / "bin" / "tracekit"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m tracekit "$@"\n')
    program.chmod(0o755)
    script = """
tracekit --install-completion >/dev/null
source ~/.bashrc
complete -p tracekit
COMP_WORDS=(tracekit replay bundled : tiny)
COMP_CWORD=4
_tracekit_completion tracekit
echo "${COMPREPLY[@]}"
COMP_WORDS=(tracekit sweep "")
COMP_CWORD=2
_tracekit_completion tracekit
echo "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "HOME": str(folder), "PATH": f"{program.parent}:{os.environ['PATH']}"},
        cwd=folder / "replays",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "complete -o default -F _tracekit_completion tracekit",
        "tiny-moe-64e.trace",
        "",  # no study is called replays/… here
    ]


def test_completing_imports_nothing_heavy(folder):
    code = f"""
import sys
from tracekit.cli import main
try:
    main()
finally:
    print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    asked = {"COMP_WORDS": "tracekit\nreplay\nx\n--policy\nbel", "COMP_CWORD": "4"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **asked, "_TRACEKIT_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "belady\nloaded:\n"
