"""The kernels as plain Python, and with every index checked: the same answers, on tiny runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("leg", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_kernels_agree_with_their_oracles(leg, tmp_path):
    """Either leg needs an interpreter of its own, and kernels that were not compiled without it."""
    environment = os.environ | {
        leg: "1",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "TRACEKIT_EXAMPLES": "12",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    files = ["test_policies.py", "test_replay_batches.py", "test_policies_conformance.py"]
    run = subprocess.run(
        [*command, *files], cwd=TESTS, env=environment, capture_output=True, text=True, timeout=600
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout
