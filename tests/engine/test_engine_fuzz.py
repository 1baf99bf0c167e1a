"""The fuzzers of the engine, seeded and short; by hand they run as long as one likes."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"


@pytest.mark.parametrize("cases", [25, pytest.param(600, marks=pytest.mark.slow)])
def test_numbers_in_a_models_header(cases: int) -> None:
    command = [sys.executable, str(FUZZ / "model_numbers.py"), str(cases), "7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
