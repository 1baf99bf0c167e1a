"""The fuzzers of the engine, seeded and short; by hand they run as long as one likes."""

import subprocess
import sys
from pathlib import Path

import pytest
from families import slow_unless

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"


@pytest.mark.parametrize("cases", slow_unless([5, 25, 600], 5))
def test_numbers_in_a_models_header(cases: int) -> None:
    command = [sys.executable, str(FUZZ / "model_numbers.py"), str(cases), "7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
