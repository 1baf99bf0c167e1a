"""What GGUF files say of a model; damaged and hostile headers are one sentence."""

import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from model_file_samples import (
    EXPERT_BYTES,
    F32,
    KEYS,
    MOE_LAYERS,
    N_EXPERT,
    WIDTH,
    f32,
    gguf,
    gguf_tensors,
    norm,
    router,
)
from mutations import SENTENCE, mutate, not_one_sentence, time_limit

from tracekit import datasets
from tracekit.formats import ImportOptions, open_any
from tracekit.model_files import read_model
from tracekit.model_files.ggml_types import KINDS, values
from tracekit.scoring import predict
from tracekit.trace import TracekitError


def sentence_of(path: Path) -> str:
    with time_limit(20), pytest.raises(TracekitError) as error:
        read_model(path)
    assert SENTENCE.fullmatch(str(error.value)), str(error.value)
    return str(error.value)


@pytest.fixture
def write(tmp_path):
    def write(keys=None, tensors=None, name="model.gguf", **how) -> Path:
        path = tmp_path / name
        given = {n: v for n, v in {**KEYS, **(keys or {})}.items() if v is not None}
        path.write_bytes(gguf(given, gguf_tensors() if tensors is None else tensors, **how))
        return path

    return write


def test_a_model(write):
    model = read_model(write())
    facts = model.facts
    assert (facts.name, facts.arch, facts.n_layer) == ("tiny", "qwen3moe", 3)
    assert (facts.n_expert, facts.top_k, facts.n_embd) == (N_EXPERT, 2, WIDTH)
    assert (facts.gating, facts.quantisation, facts.n_group) == ("softmax", "BF16", 1)
    assert facts.norm_eps == pytest.approx(1e-6)
    assert model.moe_layers == MOE_LAYERS
    for row in model.layers:
        assert row["expert_bytes"] == EXPERT_BYTES
        assert row["dense_bytes"] == 4 * (N_EXPERT * WIDTH + WIDTH)
        assert np.array_equal(row["router_matrix"], router(row["layer"]))
        assert np.array_equal(row["norm_weight"], norm(row["layer"]))


def test_the_bundled_model_is_that_of_its_trace():
    model = read_model(datasets.model_path())
    trace = open_any("bundled:tiny-moe-64e.trace")
    assert model.facts == trace.facts.model
    assert [row["expert_bytes"] for row in model.layers] == trace.expert_bytes.tolist()
    for row in model.layers:
        for name in ("router_matrix", "norm_weight"):
            assert np.array_equal(row[name], trace.layer_array(row["layer"], name))


def test_imported_gate_inputs_are_predicted_as_recorded_ones(tmp_path):
    """The routers of the model's file make of gate inputs what the recorded trace makes of them."""
    recorded = open_any("bundled:tiny-moe-64e.trace")
    first = recorded.routing(["turn", "phase", "step", "layer", "experts", "gate_input"])
    rows = {n: v[(first["turn"] == 0) & (first["phase"] == 1)] for n, v in first.items()}
    n_tokens = len(rows["step"]) // 12
    arrays = {n: rows[n].reshape(n_tokens, 12, -1) for n in ("experts", "gate_input")}
    np.savez(tmp_path / "run.npz", **arrays)
    options = ImportOptions(model=read_model(datasets.model_path()))
    trace = open_any(tmp_path / "run.npz", options=options)
    assert trace.facts.model.gating == "softmax"
    result = predict(trace, ["ctrl", "stale-gate"])
    ctrl, stale = result.rows
    assert ctrl.slot_accuracy == 1
    scored = predict(recorded, ["stale-gate"]).rows[0]
    assert stale.slot_accuracy == pytest.approx(scored.slot_accuracy, abs=0.05)
    assert stale.routings == 11 * n_tokens


def test_a_split_model(write):
    tensors = list(gguf_tensors().items())
    split = {"split.count": 2}
    first = write({"split.no": 0, **split}, dict(tensors[:5]), "m-00001-of-00002.gguf")
    second = write({"split.no": 1, **split}, dict(tensors[5:]), "m-00002-of-00002.gguf")
    assert {row["expert_bytes"] for row in read_model(first).layers} == {EXPERT_BYTES}
    assert f"name its first: {first}" in sentence_of(second)
    alone = first.rename(first.with_name("renamed.gguf"))
    assert "holds part 1 of 2 of a split model" in sentence_of(alone)
    alone.rename(first)
    second.unlink()
    assert f"{second.name} is not beside it" in sentence_of(first)


def test_experts_in_tensors_of_their_own(write):
    tensors = {}
    for layer in range(3):
        for expert in range(N_EXPERT):
            for name in ("gate", "up", "down"):
                tensors[f"blk.{layer}.ffn_{name}.{expert}.weight"] = f32(np.ones((2, 4)))
    model = read_model(write({"general.architecture": "qwen3moe"}, tensors))
    assert [row["expert_bytes"] for row in model.layers] == [96] * 3


def test_biases_groups_gating_and_layers_that_do_not_run(write):
    tensors = gguf_tensors()
    tensors["blk.1.exp_probs_b.bias"] = f32(np.arange(N_EXPERT))
    tensors["blk.1.ffn_gate_inp.bias"] = f32(np.ones(N_EXPERT))
    keys = {
        "qwen3moe.expert_gating_func": 2,
        "qwen3moe.expert_group_count": 4,
        "qwen3moe.expert_group_used_count": 2,
        "qwen3moe.nextn_predict_layers": 1,
        "qwen3moe.expert_used_count": [0, 2, 2],
    }
    model = read_model(write(keys, tensors))
    facts = model.facts
    assert (facts.gating, facts.n_group, facts.n_group_used) == ("sigmoid", 4, 2)
    assert (facts.n_layer, facts.top_k, model.moe_layers) == (2, 2, [1])
    assert np.array_equal(model.layers[0]["selection_bias"], np.arange(N_EXPERT))
    assert np.array_equal(model.layers[0]["router_bias"], np.ones(N_EXPERT))


def test_a_layer_where_the_token_s_id_selects_has_no_router(write):
    tensors = gguf_tensors()
    tensors["blk.1.ffn_gate_tid2eid.weight"] = (26, (10, 2), b"\0" * 80)
    first, second = read_model(write(tensors=tensors)).layers
    assert "router_matrix" not in first
    assert "router_matrix" in second


def test_a_router_of_a_type_that_is_not_decoded_is_left_out_with_a_warning(write):
    tensors = gguf_tensors()
    for layer in MOE_LAYERS:
        rows = N_EXPERT * 2
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = (2, (N_EXPERT, 32), b"\0" * 18 * (rows // 2))
    model = read_model(write({"qwen3moe.embedding_length": 32}, tensors))
    assert "router_matrix" not in model.layers[0]
    assert "stores ffn_gate_inp.weight as Q4_0, which is not decoded here" in model.warnings[0]
    assert len(model.warnings) == 1


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"general.architecture": None}, "does not name its architecture"),
        ({"qwen3moe.expert_count": 7}, "holds tensors of 8 experts, and the model has 7"),
        ({"qwen3moe.expert_count": None}, "n_expert = 0 is no size of a model"),
        ({"qwen3moe.expert_used_count": "two"}, "must be a whole number"),
        ({"qwen3moe.expert_used_count": [1, 2, 2]}, "depends on the layer (1, 2)"),
        ({"qwen3moe.expert_group_count": 3}, "expert groups do not divide 8 experts"),
        ({"qwen3moe.block_count": 1}, "holds no experts, so it is a dense model"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(write, keys, words):
    assert words in sentence_of(write(keys))


@pytest.mark.parametrize("claims", [(1 << 60, 3), (3, 1 << 60), (1 << 19, 3), (3, 1 << 15)])
def test_a_header_that_claims_too_much_is_refused(write, claims):
    assert "is damaged or cut short" in sentence_of(write(claims=claims))


@pytest.mark.parametrize("version", [1, 4, 3 << 24])
def test_another_version_is_refused(write, version):
    assert f"is of GGUF version {version}" in sentence_of(write(version=version))


def test_claims_within_a_header_are_compared_with_the_file(tmp_path):
    path = tmp_path / "m.gguf"
    start = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a"
    for claim in (
        struct.pack("<IQ", 8, 1 << 62),  # a text
        struct.pack("<IIQ", 9, 8, 1 << 22),  # an array of texts
        struct.pack("<IIQ", 9, 0, 1 << 62),  # an array of bytes
        struct.pack("<IIQ", 9, 9, 1),  # an array of arrays
        struct.pack("<I", 99),
    ):
        path.write_bytes(start + claim + b"\0" * 64)
        assert "is damaged or cut short" in sentence_of(path)
    # A sparse file of a terabyte: large claims are possible there, and still not looped over.
    path.write_bytes(start + struct.pack("<IIQ", 9, 8, 1 << 36))
    os.truncate(path, 1 << 40)
    assert "is damaged or cut short" in sentence_of(path)


@pytest.mark.parametrize("shape", [(0, 4), (1 << 41, 4), (1 << 39, 1 << 39)])
def test_a_tensor_of_an_impossible_shape_is_refused(write, shape):
    assert "is damaged or cut short" in sentence_of(write(tensors={"a": (F32, shape, b"")}))


def test_a_tensor_of_an_unknown_type_is_refused(write):
    assert "has the type 77" in sentence_of(write(tensors={"a": (77, (4,), b"\0" * 16)}))


@pytest.mark.parametrize("share", [0.01, 0.2, 0.5, 0.9, 0.99])
def test_a_cut_file_is_refused(write, share):
    path = write()
    os.truncate(path, int(share * path.stat().st_size))
    assert "cut short" in sentence_of(path)


@pytest.mark.parametrize("seed", range(2))
def test_mutated_files_are_read_or_refused_in_one_sentence(write, seed):
    path, rng = write(), random.Random(seed)
    sample = path.read_bytes()
    refused = []
    for _ in range(80):
        path.write_bytes(mutate(sample[:1600], rng) + sample[1600:])
        try:
            with time_limit(20):
                read_model(path)
        except TracekitError as error:
            refused.append(str(error))
    assert not_one_sentence(refused) == []
    assert len(refused) > 20


def test_a_long_header_is_read_fast(write):
    """The vocabulary of a model, with its merges, is passed over."""
    words = [f"word{n}" for n in range(40_000)]
    path = write({"tokenizer.ggml.tokens": words, "tokenizer.ggml.merges": words})
    with time_limit(3):
        assert read_model(path).moe_layers == MOE_LAYERS


def test_types_are_those_of_the_gguf_package():
    constants = pytest.importorskip("gguf", reason="the engine extra brings gguf")
    known = {int(kind): (kind.name, *sizes) for kind, sizes in constants.GGML_QUANT_SIZES.items()}
    assert {number: tuple(kind) for number, kind in KINDS.items()}.items() <= known.items()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0"])
def test_values_are_those_of_the_gguf_package(name):
    pytest.importorskip("gguf", reason="the engine extra brings gguf")
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    array = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    kind = GGMLQuantizationType[name]
    data = quantize(array, kind)
    mine = values(KINDS[int(kind)], data.tobytes())
    expected = dequantize(data, kind) if name != "F32" else array
    assert np.array_equal(mine, np.asarray(expected, np.float32).ravel())
