"""Fixtures that several test files share."""

import gc
import os
import signal
import sys
from pathlib import Path

import pytest
from families import LEFT_OUT, RARE_POLICIES, ranking_without


def pytest_configure() -> None:
    """Let Ctrl-C come to the tests that press it: a job in the background ignores it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking through thousands of collected tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Close what llama.cpp's binding opened when it was imported, or Python complains at its end."""
    binding = sys.modules.get("llama_cpp._utils")
    for name in ("outnull_file", "errnull_file"):
        if hasattr(binding, name):
            getattr(binding, name).close()


def _shared() -> Path:
    named = os.environ.get("TRACEKIT_SHARED")
    return Path(named) if named else Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def phone_traces() -> Path:
    """The folder of phone traces and published figures; a test that needs it is skipped without."""
    root = _shared()
    if not (root / "traces").is_dir():
        pytest.skip(f"the phone traces are not at {root} (set TRACEKIT_SHARED to their folder)")
    return root


@pytest.fixture(scope="module", params=LEFT_OUT)
def left_out(request) -> frozenset[str]:
    """The policies that a test leaves out of rankings: the rare ones; none in the slow suite."""
    named: frozenset[str] = request.param
    return named


@pytest.fixture
def fewer_ranked(left_out):
    """Let advice and closures rank all policies but those that are left out."""
    with ranking_without(left_out):
        yield


@pytest.fixture(autouse=True)
def no_rare_policy(request):
    """Let advice, closures and the reasons of a disagreement try no rare policy in fast tests."""
    is_slow = request.node.get_closest_marker("slow") is not None
    with ranking_without(() if is_slow else RARE_POLICIES):
        yield
