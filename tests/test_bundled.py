"""The bundled trace is what a real model does: no turn falls into a loop, and it replays exactly."""

import numpy as np
import pytest

import tracekit

LONGEST_PERIOD = 12
MOST_REPEATED = 8  # tokens; a name or an idiom may come twice


@pytest.fixture(scope="module")
def trace():
    return tracekit.open_trace("bundled:tiny-moe-64e.trace")


def longest_repeat(tokens: np.ndarray, period: int) -> int:
    """Return how many tokens in a row equal the one `period` before them."""
    longest = run = 0
    for is_same in tokens[period:] == tokens[:-period]:
        run = run + 1 if is_same else 0
        longest = max(longest, run)
    return longest


@pytest.mark.parametrize("period", [1, 2, 5])
def test_a_loop_is_seen(period):
    start = np.arange(100, 120)
    looping = np.concatenate([start, np.tile(np.arange(period), 30)])
    assert longest_repeat(start, period) == 0
    assert longest_repeat(looping, period) >= 29 * period


def test_no_turn_falls_into_a_loop(trace):
    steps = trace.steps(["turn", "token"])
    for turn in np.unique(steps["turn"]):
        tokens = steps["token"][steps["turn"] == turn]
        for period in range(1, LONGEST_PERIOD + 1):
            assert longest_repeat(tokens, period) <= MOST_REPEATED, (turn, period)


def test_it_agrees_with_its_replay(trace):
    agreement = trace.facts.agreement
    assert agreement.n_lookups > 50_000
    assert (agreement.n_mismatched, agreement.n_passes_mismatched) == (0, 0)
    assert trace.warnings == []
