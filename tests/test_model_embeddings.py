"""Embeddings of tokens that an import takes from the model's file: those of the recording."""

import json

import numpy as np
import pytest
from cli_helpers import run as tracekit
from model_file_samples import (
    BF16,
    CONFIG,
    KEYS,
    MOE_LAYERS,
    TOP_K,
    WIDTH,
    bf16,
    f32,
    gguf,
    gguf_tensors,
    per_expert,
    safetensors,
)

from tracekit import datasets, export
from tracekit.formats import ImportOptions, import_any, open_any
from tracekit.model_files import read_model
from tracekit.scoring import predict
from tracekit.trace import Trace, TraceError, UsageError

N_VOCAB = 9
TABLE = np.random.default_rng(0).integers(-8, 8, (N_VOCAB, WIDTH)).astype(np.float32)
TOKENS = np.array([8, 0, 3, 3, 0, 8])


def q8_0(values: np.ndarray) -> bytes:
    """Return whole numbers in blocks of 32 with the scale 1."""
    blocks = np.empty(values.size // 32, np.dtype([("scale", "<f2"), ("values", "i1", 32)]))
    blocks["scale"], blocks["values"] = 1, values.reshape(-1, 32)
    return blocks.tobytes()


def of_gguf(path, embeddings):
    path.write_bytes(gguf(KEYS, {**gguf_tensors(), "token_embd.weight": embeddings}))
    return path


@pytest.fixture
def run(tmp_path):
    """Return arrays of a run as a file, with the ids of its tokens."""
    experts = np.stack([np.arange(12).reshape(6, 2) % 7, np.full((6, 2), 7)], axis=2)
    np.savez(tmp_path / "run.npz", experts=experts, layers=MOE_LAYERS, token_ids=TOKENS)
    assert experts.shape == (6, len(MOE_LAYERS), TOP_K)
    return tmp_path / "run.npz"


@pytest.mark.parametrize(
    "embeddings",
    [
        f32(TABLE),
        (1, TABLE.shape, TABLE.astype("<f2").tobytes()),
        (BF16, TABLE.shape, bf16(TABLE).tobytes()),
    ],
)
def test_each_token_has_the_row_of_its_id(embeddings, run, tmp_path):
    model = read_model(of_gguf(tmp_path / "model.gguf", embeddings))
    options = ImportOptions(model=model, embeddings=True)
    import_any(run, tmp_path / "x.trace", options)
    for trace in (open_any(run, options=options), Trace.open(tmp_path / "x.trace")):
        assert np.array_equal(trace.steps(["embedding"])["embedding"], TABLE[TOKENS])
    again = open_any(tmp_path / "x.trace", options=options)
    assert np.array_equal(again.steps(["embedding"])["embedding"], TABLE[TOKENS])


def test_rows_of_blocks_are_decoded(run, tmp_path):
    wide = np.tile(TABLE, 2)
    keys = {**KEYS, "qwen3moe.embedding_length": 2 * WIDTH}
    tensors = {**gguf_tensors(), "token_embd.weight": (8, wide.shape, q8_0(wide))}
    (tmp_path / "model.gguf").write_bytes(gguf(keys, tensors))
    model = read_model(tmp_path / "model.gguf")
    trace = open_any(run, options=ImportOptions(model=model, embeddings=True))
    assert np.array_equal(trace.steps(["embedding"])["embedding"], wide[TOKENS])


def test_safetensors_have_them_too(run, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    tensors = {**per_expert(), "model.embed_tokens.weight": bf16(TABLE)}
    (tmp_path / "model.safetensors").write_bytes(safetensors(tensors))
    model = read_model(tmp_path)
    trace = open_any(run, options=ImportOptions(model=model, embeddings=True))
    assert np.array_equal(trace.steps(["embedding"])["embedding"], TABLE[TOKENS])


def test_embedding_gate_scores_as_on_the_recording(tmp_path):
    """Only ids of tokens and experts are left of the recording; the rest is in the model's file."""
    recorded = open_any("bundled:tiny-moe-64e.trace")
    export(recorded, tmp_path / "run.npz")
    with np.load(tmp_path / "run.npz") as arrays:
        left = {name: arrays[name] for name in arrays if name not in ("logits", "gate_input")}
    np.savez(tmp_path / "run.npz", **left)
    options = ImportOptions(model=read_model(datasets.model_path()), embeddings=True)
    trace = open_any(tmp_path / "run.npz", options=options)
    assert not trace.has("gate_input")
    of_both = [trace_.steps(["embedding"])["embedding"] for trace_ in (recorded, trace)]
    assert np.allclose(*of_both, rtol=1e-6, atol=0)
    found, expected = (predict(each, ["embedding-gate"]).rows[0] for each in (trace, recorded))
    assert (found.routings, found.slot_accuracy) == (expected.routings, expected.slot_accuracy)


def test_the_command_line_asks_for_them(run, tmp_path):
    model = of_gguf(tmp_path / "model.gguf", f32(TABLE))
    args = ("import", run, "--model", model, "-o", tmp_path / "x.trace", "--force")
    assert tracekit(*args).code == 0
    done = tracekit("predict", tmp_path / "x.trace", "--predictor", "embedding-gate")
    assert "--model PATH --embeddings -o NAME.trace` takes it from the model's file" in done.err
    assert tracekit(*args, "--embeddings").code == 0
    assert tracekit("predict", tmp_path / "x.trace", "--predictor", "embedding-gate").code == 0


def test_a_token_without_an_id_is_not_ranked(tmp_path, run):
    with np.load(run) as arrays:
        np.savez(run, **{**arrays, "token_ids": np.where(TOKENS == 3, -1, TOKENS)})
    model = read_model(of_gguf(tmp_path / "model.gguf", f32(TABLE)))
    trace = open_any(run, options=ImportOptions(model=model, embeddings=True))
    assert np.isnan(trace.steps(["embedding"])["embedding"]).all(axis=1).tolist() == [
        token == 3 for token in TOKENS
    ]
    (row,) = predict(trace, ["embedding-gate"]).rows
    assert (row.routings, row.unscored) == (4 * len(MOE_LAYERS), 2 * len(MOE_LAYERS))


def test_what_is_missing_is_said(run, tmp_path):
    path = tmp_path / "model.gguf"
    with pytest.raises(UsageError, match=r"name it with --model PATH\."):
        ImportOptions(embeddings=True)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    for model in (
        read_model(tmp_path / "config.json"),
        read_model(of_gguf(path, (24, TABLE.shape, TABLE.astype("i1").tobytes()))),
    ):
        with pytest.raises(UsageError, match=r"no token embeddings as F32, F16, BF16 or Q8_0"):
            ImportOptions(model=model, embeddings=True)
    options = ImportOptions(model=read_model(of_gguf(path, f32(TABLE[:8]))), embeddings=True)
    with pytest.raises(TraceError, match=r"of 8 tokens, and the trace has token 8, so it is of"):
        import_any(run, tmp_path / "x.trace", options)
    with np.load(run) as arrays:
        np.savez(run, experts=arrays["experts"], layers=arrays["layers"])
    for opened in (open_any, lambda path, **more: import_any(path, tmp_path / "x.trace", **more)):
        with pytest.raises(UsageError, match=r"has no ids of its tokens.*leave out --embeddings"):
            opened(run, options=options)
    assert not (tmp_path / "x.trace").exists()
