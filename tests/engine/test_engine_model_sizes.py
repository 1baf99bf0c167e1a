"""What a model's file says of itself, and what the recorder sees when the model runs, are the same."""

from dataclasses import replace

import numpy as np
import pytest
import tiny_models

from tracekit.formats import open_any
from tracekit.model_files import read_model
from tracekit.trace.layers import ARRAYS
from tracekit_engine import Generation, record

FEW = ("gpt-oss", "deepseek2", "gemma4")
ARCHS = [
    arch if arch in FEW else pytest.param(arch, marks=pytest.mark.slow)
    for arch in tiny_models.MODELS
]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_header_says_what_the_recorder_sees(arch, tiny_model, tmp_path):
    path = tiny_model(arch)
    record(path, "hello", tmp_path / "run.trace", generation=Generation(1))
    trace, model = open_any(tmp_path / "run.trace"), read_model(path)
    assert replace(model.facts, file_bytes=None) == replace(trace.facts.model, file_bytes=None)
    assert model.moe_layers == trace.moe_layers.tolist()
    sizes = trace.layer_columns
    for row in model.layers:
        at = sizes["layer"].tolist().index(row["layer"])
        for name in ("expert_bytes", "dense_bytes"):
            assert row[name] == sizes[name][at], (row["layer"], name)
        for name in ARRAYS:
            recorded = trace.layer_array(row["layer"], name)
            assert (recorded is None) == (name not in row), (row["layer"], name)
            assert recorded is None or np.array_equal(recorded, row[name]), (row["layer"], name)
