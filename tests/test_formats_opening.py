"""How a trace may be given to a function: as a trace, a path or the name of a bundled one."""

from pathlib import Path

import numpy as np
import pytest

from tracekit import datasets
from tracekit.formats import as_trace, open_any
from tracekit.trace import TraceError, UsageError, synthesize, write_trace

BUNDLED = "bundled:tiny-moe-64e.trace"


def test_a_trace_is_taken_as_it_is():
    trace = synthesize()
    assert as_trace(trace) is trace


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_opened(kind, tmp_path):
    trace = synthesize()
    write_trace(trace, tmp_path / "run.trace")
    assert as_trace(kind(tmp_path / "run.trace")).digest == trace.digest


@pytest.mark.parametrize("read", [as_trace, open_any])
def test_a_bundled_trace_is_opened_by_name(read):
    trace = read(BUNDLED)
    assert trace.path == datasets.path("tiny-moe-64e.trace")
    assert trace.facts.model.name == "tiny-moe-64e-q8_0"


def test_an_unknown_bundled_name_lists_those_there_are():
    with pytest.raises(UsageError) as error:
        as_trace("bundled:nothing")
    assert str(error.value) == (
        "No bundled file is called 'nothing'; there are: tiny-moe-64e-q8_0.gguf, "
        "tiny-moe-64e.trace."
    )


def test_a_bundled_model_is_no_trace():
    with pytest.raises(TraceError, match="is no trace that tracekit knows"):
        as_trace("bundled:tiny-moe-64e-q8_0.gguf")


@pytest.mark.parametrize("wrong", [None, 3, b"run.trace", np.zeros(2), ["run.trace"]])
def test_anything_else_is_refused(wrong):
    with pytest.raises(UsageError) as error:
        as_trace(wrong)
    assert str(error.value) == (
        f"A trace is given as a Trace, a path or 'bundled:NAME', not as {wrong!r}."
    )
