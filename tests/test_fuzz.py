"""The fuzzers of the readers, seeded and short; `tests/fuzz/` has them for as long as one likes."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parent / "fuzz"


@pytest.mark.slow
def test_readers() -> None:
    command = [sys.executable, str(FUZZ / "run.py"), "--inputs", "20000", "--seed", "9"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20000 inputs, 0 faults" in done.stdout
