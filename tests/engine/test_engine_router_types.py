"""Routers that are not stored as F32: why the control is below 100 %, and that the report says so."""

from pathlib import Path

import numpy as np
import pytest
import tiny_models
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize

from tracekit.scoring.predict import predict
from tracekit.trace import Trace
from tracekit_engine import Generation, Options, record

# What llama.cpp rounds the gate input to for the product with a matrix of each type.
ROUNDED_TO = {Type.F16: Type.F16, Type.BF16: Type.BF16, Type.Q8_0: Type.Q8_0, Type.Q4_0: Type.Q8_0}


@pytest.fixture(scope="module")
def of_q8_0(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return recorded(Type.Q8_0, tmp_path_factory.mktemp("q8_0"))


def recorded(kind: Type, folder: Path) -> Trace:
    path = tiny_models.write(folder / "model.gguf", "qwen3moe", router_type=kind)
    generation = Generation(400, ignore_eos=True)
    record(path, ["One", "Two"], folder / "run.trace", options=Options(1024), generation=generation)
    return Trace.open(folder / "run.trace")


@pytest.mark.slow  # the fast suite predicts with rounded routers: test_predict_rounded_routers
@pytest.mark.parametrize("kind", ROUNDED_TO, ids=lambda kind: kind.name)
def test_rounding_the_gate_input_is_the_whole_difference(
    kind: Type, of_q8_0: Trace, tmp_path: Path
) -> None:
    trace = of_q8_0 if kind == Type.Q8_0 else recorded(kind, tmp_path)
    assert trace.facts.notes["router_types"] == {kind.name: [0, 1, 2]}
    to = ROUNDED_TO[kind]
    rows = trace.routing(["layer", "experts", "gate_input", "logits"])
    for layer in trace.moe_layers.tolist():
        at = rows["layer"] == layer
        rounded = dequantize(quantize(rows["gate_input"][at], to), to)
        logits = rounded @ trace.layer_array(layer, "router_matrix").T
        assert np.abs(logits - rows["logits"][at]).max() < 1e-3
        order = np.argsort(-rows["logits"][at], axis=1)[:, : trace.top_k]
        assert np.array_equal(np.sort(order), np.sort(rows["experts"][at]))


@pytest.mark.slow
def test_the_report_names_the_rounding(of_q8_0: Trace) -> None:
    result = predict(of_q8_0, ["ctrl"])
    assert 0.98 < result.record("ctrl")["slot_accuracy"] < 1
    sentence = result.sentences()[0]
    assert sentence.startswith("CTRL IS BELOW 100 %")
    assert "their routers are stored as Q8_0, and the engine rounds for the product" in sentence
    assert "recording is wrong" not in sentence
    assert sentence in result.to_text()


@pytest.mark.slow  # every other recording in these tests has such a router, and a control of 100 %
def test_a_router_of_f32_is_not_rounded(tmp_path: Path) -> None:
    result = predict(recorded(Type.F32, tmp_path), ["ctrl"])
    assert result.record("ctrl")["slot_accuracy"] == 1
    assert result.rounded_routers == {}
