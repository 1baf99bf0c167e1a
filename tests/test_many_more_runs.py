"""The fast tests draw few runs; here a process of its own draws ten times as many for each file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from cache_runs import EXAMPLES

DRAWING = sorted(
    path
    for path in Path(__file__).parent.glob("test_*.py")
    if "max_examples=EXAMPLES" in path.read_text(encoding="utf-8") and path != Path(__file__)
)
# Of the tests of one file, those that draw, or look for what a few runs may miss.
ONLY = {"test_policies_conformance": "oracle_on_every or future or resident"}


def test_files_that_draw_runs_are_found():
    assert {path.stem for path in DRAWING} >= {*ONLY, "test_replay_counting", "test_policies"}


@pytest.mark.slow
@pytest.mark.parametrize("path", DRAWING, ids=lambda path: path.stem)
def test_every_rule_holds_on_many_more_runs(path):
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider"]
    command += ["-k", ONLY.get(path.stem, "test"), path]
    many = {**os.environ, "TRACEKIT_EXAMPLES": str(10 * EXAMPLES)}
    done = subprocess.run(command, env=many, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
