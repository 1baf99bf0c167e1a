"""The fuzzers of the engine, seeded and short; by hand they run as long as one likes."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"


@pytest.mark.slow  # the fast suite tries numbers one by one: test_engine_model_file
@pytest.mark.parametrize("cases", [25, 600])
def test_numbers_in_a_models_header(cases: int) -> None:
    command = [sys.executable, str(FUZZ / "model_numbers.py"), str(cases), "7"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
