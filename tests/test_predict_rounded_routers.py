"""What the report says of a control below 100 % where routers are not stored as F32."""

from typing import Any

import numpy as np
import pytest
from predict_traces import toy, trace_of

from tracekit.report.accuracy import score
from tracekit.scoring.predict import predict
from tracekit.scoring.result import PredictResult
from tracekit.trace import Trace


def noisy(noise: float, **notes: Any) -> Trace:
    """Make a trace whose gate inputs are not quite those that the model multiplied, in layer 2."""
    run = toy()
    rng = np.random.default_rng(0)
    run.gate_input[:, 2] += noise * rng.standard_normal(run.gate_input[:, 2].shape).astype(
        np.float32
    )
    return trace_of(run, notes=notes)


def first_sentence(result: PredictResult) -> str:
    assert result.record("ctrl")["slot_accuracy"] < 1
    return result.sentences()[0]


def test_the_rounding_is_named() -> None:
    trace = noisy(0.01, router_types={"F32": [0, 1, 3], "Q8_0": [2]})
    sentence = first_sentence(predict(trace, ["ctrl"]))
    assert "in layers 2 (" in sentence
    assert "their routers are stored as Q8_0, and the engine rounds for the product" in sentence
    assert "or the recording is wrong" not in sentence
    assert score(trace, ["ctrl"], 0, 1).alarm == [sentence]


@pytest.mark.parametrize(
    "notes",
    [
        {},
        {"router_types": {"F32": [0, 1, 2, 3]}},
        {"router_types": {"Q8_0": [0, 1, 3]}},  # not the layer that misses
        {"router_types": ["Q8_0"]},
        {"router_types": {"Q8_0": "2"}},
        {"router_types": {"Q8_0": [2.5, None]}},
    ],
)
def test_other_causes_stay(notes: dict[str, Any]) -> None:
    sentence = first_sentence(predict(noisy(0.01, **notes), ["ctrl"]))
    assert "kept as f16 and their rounding decides, or the recording is wrong, or" in sentence


def test_rounding_does_not_explain_a_control_that_misses_much() -> None:
    sentence = first_sentence(predict(noisy(5, router_types={"Q4_0": [2]}), ["ctrl"]))
    assert "stored as Q4_0, and the engine" in sentence
    assert "or the recording is wrong, or the model selects" in sentence
