"""The command that prints the figures of the speed page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_one_command_runs_all_that_the_page_names(tmp_path):
    command = [sys.executable, "tests/benchmarks/all.py", "--quick", "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    assert re.findall("^## .*", done.stdout, re.MULTILINE) == re.findall(
        "^## .*", page, re.MULTILINE
    )
    named = {*re.findall(r"tests/benchmarks/(\w+\.py)", page)} - {"all.py"}
    not_quick = {"record_cost.py", "bounded_memory.py"}  # they write 6.3 GB
    ran = re.findall(r"^(\w+\.py)\b", done.stdout, re.MULTILINE)
    assert {*ran} == named - not_quick
    assert len(re.findall("s of processor time, peak ", done.stdout)) == len(ran)
    assert list(tmp_path.iterdir()) == []
