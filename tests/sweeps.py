"""A study over small traces for tests of where a sweep runs, and what it finds."""

from pathlib import Path

import numpy as np
import pandas as pd

from tracekit.trace import synthesize, write_trace

TRACES = ("one", "two")
HEAD = """
title = "A study"

[traces.one]
file = "one.trace"

[traces.two]
file = "two.trace"
"""
RUN = """
[[run]]
policies = ["lru", "random", "belady", "layer-lru", "retention"]
cache_cycles = [0.5, 1, 2, 3]
seeds = [0, 1]
skip = 1

[run.params]
"retention.predictor" = "prev-token"
"""
SMALL = """
title = "A small study"

[traces.one]
file = "one.trace"

[[run]]
policies = ["lru", "random"]
cache_cycles = [0.5, 1, 2]
seeds = [0, 1]
"""
REST = """
[[run]]
traces = ["one"]
policies = ["lru", "bound"]
cache_slots = [2, 3]
warm = "two"
bypass = true

[[run]]
predictors = ["prev-token", "random-guess"]

[[run]]
traces = ["two"]
policies = ["lfu"]
cache_fraction = [0.25, 0.5]
closures = true

[[claim]]
says = "LRU hits nothing under a cycle"
figure = "hits_decode"
of = { policy = "lru", cache_cycles = 0.5 }
equals = 0
"""
STUDY = HEAD + RUN + REST


def write_study(folder: Path, text: str = STUDY) -> Path:
    """Write a study and its traces."""
    for seed, name in enumerate(TRACES):
        write_trace(synthesize(3, 12, 2, 40, 2, 4, seed), folder / f"{name}.trace")
    path = folder / "study.toml"
    path.write_text(text)
    return path


def check_same(found, expected) -> None:
    """Check that two results are the same to the last bit."""
    assert (found.csv, found.notes, found.warnings) == (
        expected.csv,
        expected.notes,
        expected.warnings,
    )
    assert [str(verdict) for verdict in found.verdicts] == [str(v) for v in expected.verdicts]
    pd.testing.assert_frame_equal(found.frame, expected.frame, check_exact=True)
    for name in expected.frame.select_dtypes("number"):
        one, other = found.frame[name].to_numpy(), expected.frame[name].to_numpy()
        assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), name
