"""Files that are not a model, not a whole one, or have no experts: the sentence about each."""

import re
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from gguf import GGUFWriter
from gguf_parts import add_keys, add_vocabulary

from tracekit.trace import TracekitError
from tracekit_engine.gguf_header import EXPERT_WEIGHT
from tracekit_engine.model import Model
from tracekit_engine.model_file import ModelFile


def test_facts_and_places(model: Path) -> None:
    file = ModelFile.open(model)
    assert (file.arch, file.n_layer, file.n_expert, file.top_k) == ("qwen3moe", 3, 8, 2)
    assert (file.n_embd, file.n_ctx_train, file.quantisation) == (64, 1024, "Q8_0")
    assert list(file.expert_tensors) == [0, 1, 2]
    one = file.expert_bytes[0]
    assert one == 3 * tiny_models.D * tiny_models.FF_EXPERT * 34 // 32
    gate = file.tensors["blk.0.ffn_gate_exps.weight"]
    assert gate.slice(0)[0] == gate.start
    assert gate.slice(7)[1] == gate.stop
    total = 3 * 8 * one + sum(file.dense_bytes.values())
    assert total == sum(tensor.n_bytes for tensor in file.tensors.values())


def refusal(path: Path) -> str:
    with pytest.raises(TracekitError) as caught:
        ModelFile.open(path)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert str(path) in sentence
    return sentence


def test_no_file(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "absent.gguf")


def test_a_folder(tmp_path: Path) -> None:
    assert "not a file" in refusal(tmp_path)


def test_not_a_gguf(tmp_path: Path) -> None:
    path = tmp_path / "text.gguf"
    path.write_text("once upon a time")
    assert "not a GGUF file" in refusal(path)


@pytest.mark.parametrize("share", [0.001, 0.02, 0.3])
def test_a_header_cut_short(model: Path, tmp_path: Path, share: float) -> None:
    whole = model.read_bytes()
    header = ModelFile.open(model).tensors["token_embd.weight"].start
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: max(5, int(share * header))])
    assert "damaged or cut short" in refusal(path)


def test_tensors_cut_short(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(model.read_bytes()[:-100])
    assert "is cut short: blk.2.ffn" in refusal(path)


def test_a_dense_model(tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "dense.gguf", "llama", dense_only=True)
    assert "dense model (llama)" in refusal(path)


INF = float("inf")
OUT_OF_RANGE = [
    ("attention.layer_norm_rms_epsilon", INF, "rms_epsilon is inf; it must be a finite number"),
    ("attention.layer_norm_rms_epsilon", -INF, "rms_epsilon is -inf; it must be a finite number"),
    ("attention.layer_norm_rms_epsilon", 1e30, "rms_epsilon is 1e\\+30; it must be from 0 to 1"),
    ("attention.layer_norm_rms_epsilon", 2.0, "rms_epsilon is 2.0; it must be from 0 to 1"),
    ("attention.layer_norm_epsilon", INF, "norm_epsilon is inf"),
    ("rope.freq_base", INF, "freq_base is inf"),
    ("rope.freq_base", 0.0, "freq_base is 0.0; it must be from 1e-06 to 1e\\+15"),
    ("rope.freq_base_swa", -1.0, "freq_base_swa is -1.0"),
    ("rope.scaling.factor", INF, "scaling.factor is inf"),
    ("rope.scaling.factor", -2.0, "scaling.factor is -2.0"),
    ("expert_weights_scale", 3e38, "expert_weights_scale is 3e\\+38"),
    ("logit_scale", -INF, "logit_scale is -inf"),
    ("swiglu_clamp_exp", [10.0, INF, 10.0], "swiglu_clamp_exp is inf"),
    ("a.key.unknown.here", float("nan"), "key.unknown.here is nan"),
    ("rope.dimension_count", 0, "rope.dimension_count is 0; it must be from 1 to 65,536"),
    ("rope.dimension_count", 2**32 - 1, "rope.dimension_count is 4,294,967,295"),
    ("rope.dimension_count_swa", 0, "rope.dimension_count_swa is 0"),
    ("attention.sliding_window", 2**31, "sliding_window is 2,147,483,648; it must be from 0 to 16"),
    ("attention.sliding_window", 2**31 - 1, "sliding_window is 2,147,483,647"),
    ("context_length", 0, "context_length is 0; it must be from 1 to 4,294,967,295"),
    ("embedding_length", 0, "embedding_length is 0; it must be from 1 to 16,777,216"),
]

CONTRADICTIONS = [
    ({"expert_count": None}, "expert_count is 0 or missing, .* its weights are of 8 experts"),
    ({"expert_count": 9}, "expert_count is 9, .* its weights are of 8 experts"),
    ({"expert_count": "abc"}, "expert_count must be a whole number, and is 'abc'"),
    ({"expert_count": [-1]}, r"expert_count must be a whole number, and is \[-1\]"),
    ({"expert_used_count": None}, "expert_used_count is 0 or missing, .* has 8 experts"),
    ({"expert_used_count": 0}, "expert_used_count is 0 or missing"),
    ({"expert_used_count": 9}, "expert_used_count is 9"),
    ({"expert_used_count": 2.0}, "expert_used_count must be a whole number, and is 2.0"),
    ({"expert_group_count": 3}, "expert_group_count is 3, .* 8 experts cannot form so many"),
    ({"expert_group_count": 8}, "expert_group_count is 8"),
    (
        {"expert_group_count": 4},
        "expert_group_used_count is 0 or missing, .* with 4 groups it must be from 1 to 3",
    ),
    ({"expert_group_count": 2, "expert_group_used_count": 2}, "expert_group_used_count is 2"),
    ({"block_count": 0}, "block_count is 0 or missing, .* the file holds 3 layers"),
    ({"block_count": 100_000}, "block_count is 100000, .* the file holds 3 layers"),
    ({"nextn_predict_layers": 3}, "block_count is 3"),
    ({"attention.layer_norm_rms_epsilon": float("nan")}, "rms_epsilon is nan"),
    ({"attention.layer_norm_rms_epsilon": -1.0}, "rms_epsilon is -1.0"),
    ({"rope.freq_base": float("nan")}, "rope.freq_base is nan"),
    *(({key: value}, sentence) for key, value, sentence in OUT_OF_RANGE),
]


@pytest.mark.parametrize(("odd", "sentence"), CONTRADICTIONS)
def test_metadata_that_contradicts(odd: dict[str, object], sentence: str, tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "odd.gguf", "qwen3moe", odd=odd)
    assert re.search(rf"odd\.gguf: qwen3moe\.[a-z_.]*{sentence}", refusal(path))


def test_experts_under_the_keys_of_another_architecture(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "misnamed.gguf"
    named = b"general.architecture\x08\0\0\0\x08\0\0\0\0\0\0\0"
    path.write_bytes(model.read_bytes().replace(named + b"qwen3moe", named + b"qwen9moe"))
    assert "qwen9moe.block_count is 0 or missing" in refusal(path)


def test_experts_used_layer_by_layer(tmp_path: Path) -> None:
    odd = {"expert_used_count": [0, 3, 3]}  # its first layer has no experts
    path = tiny_models.write(tmp_path / "layers.gguf", "glm4moe", odd=odd)
    assert ModelFile.open(path).top_k == 3
    odd = {"expert_used_count": [1, 3, 2]}
    path = tiny_models.write(tmp_path / "differ.gguf", "qwen3moe", odd=odd)
    sentence = (
        r"expert_used_count is 1 or 2 or 3, depending on the layer, but a trace has one number"
    )
    assert re.search(sentence, refusal(path))


def one_tensor_per_expert(path: Path) -> Path:
    with_stacks = ModelFile.open(tiny_models.write(path.with_name("stacked.gguf"), "llama"))
    writer = GGUFWriter(path, "llama")
    add_vocabulary(writer)
    keys = {"block_count": 3, "expert_count": 8, "expert_used_count": 2, "embedding_length": 64}
    add_keys(writer, "llama", keys)
    for name, tensor in with_stacks.tensors.items():
        if EXPERT_WEIGHT.fullmatch(name):
            base = name.removesuffix("_exps.weight")
            for expert in range(8):
                shape = tensor.shape[1::-1]
                writer.add_tensor(f"{base}.{expert}.weight", np.zeros(shape, np.float32))
        else:
            writer.add_tensor(name, np.zeros(tensor.shape[::-1], np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_one_tensor_for_each_expert(tmp_path: Path) -> None:
    sentence = refusal(one_tensor_per_expert(tmp_path / "old.gguf"))
    assert "holds each expert as a tensor of its own (blk.0.ffn_" in sentence
    assert "download a newer file" in sentence


def test_the_shared_model_with_one_tensor_for_each_expert(phone_traces: Path) -> None:
    path = phone_traces / "cases" / "legacy_mixtral.gguf"
    assert "holds each expert as a tensor of its own" in refusal(path)


@pytest.mark.slow  # it writes a model of thousands of experts
def test_more_experts_than_llama_cpp_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_models, "EXPERTS", 2000)
    path = tiny_models.write(tmp_path / "many.gguf", "qwen3moe")
    file = ModelFile.open(path)
    with pytest.raises(TracekitError, match=r"many\.gguf has 2,000 experts in a layer, more than"):
        Model(file)


def test_a_single_expert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny_models, "EXPERTS", 1)
    path = tiny_models.write(tmp_path / "one.gguf", "qwen3moe", odd={"expert_used_count": 1})
    file = ModelFile.open(path)
    gate = file.expert_tensors[0][0]
    assert gate.slice(0) == (gate.start, gate.stop)


def test_no_model_at_all(tmp_path: Path) -> None:
    path = tmp_path / "empty.gguf"
    writer = GGUFWriter(path, "x")
    writer.kv_data[0].clear()
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert "does not name its architecture" in refusal(path)


@pytest.fixture
def split_model(tmp_path: Path) -> Path:
    tiny_models.write(tmp_path / "split.gguf", "qwen3moe", tensors_a_file=12)
    return tmp_path / "split-00001-of-00004.gguf"


def test_split_files_are_one_model(split_model: Path, model: Path) -> None:
    split, whole = ModelFile.open(split_model), ModelFile.open(model)
    assert len(split.paths) == 4
    assert split.expert_bytes == whole.expert_bytes
    assert split.dense_bytes == whole.dense_bytes
    assert {tensor.file for tensor in split.tensors.values()} == {0, 1, 2, 3}


def test_a_later_part_named(split_model: Path) -> None:
    second = split_model.with_name("split-00002-of-00004.gguf")
    assert "name its first: split-00001-of-00004.gguf" in refusal(second)


@pytest.mark.parametrize("name", ["d-00001-of-00000.gguf", "d-00003-of-00002.gguf"])
def test_a_part_number_out_of_range(name: str, tmp_path: Path) -> None:
    assert "which is not a part's number" in refusal(tmp_path / name)


@pytest.mark.parametrize("number", [1, 2])
def test_a_part_under_another_name(number: int, split_model: Path) -> None:
    part = split_model.with_name(f"split-0000{number}-of-00004.gguf")
    alone = part.rename(split_model.with_name("alone.gguf"))
    sentence = (
        rf"is named as a whole model, but it holds part {number} of 4; give it a name that ends"
    )
    assert re.search(rf"alone\.gguf {sentence} in -0000{number}-of-00004\.gguf", refusal(alone))


def test_parts_under_each_others_names(split_model: Path) -> None:
    second, third = (split_model.with_name(f"split-0000{i}-of-00004.gguf") for i in (2, 3))
    kept = second.rename(second.with_name("kept.gguf"))
    third.rename(second)
    kept.rename(third)
    with pytest.raises(
        TracekitError, match=r"named as part 2 of 4, but it holds part 3 of 4; give"
    ):
        ModelFile.open(split_model)


def test_fewer_parts_by_name(split_model: Path) -> None:
    for i in (1, 2, 3):
        part = split_model.with_name(f"split-0000{i}-of-00004.gguf")
        part.rename(split_model.with_name(f"split-0000{i}-of-00003.gguf"))
    renamed = split_model.with_name("split-00001-of-00003.gguf")
    assert "is named as part 1 of 3, but it holds part 1 of 4" in refusal(renamed)


@pytest.mark.parametrize("count", [2, 4])
def test_files_joined_by_cat(count: int, split_model: Path, model: Path) -> None:
    """The parts of a split model, and a model twice."""
    parts = [split_model.with_name(f"split-0000{i}-of-00004.gguf") for i in range(1, 5)]
    joined = split_model.with_name("joined.gguf")
    joined.write_bytes(
        b"".join(part.read_bytes() for part in (parts if count == 4 else [model] * 2))
    )
    sentence = refusal(joined)
    second = (parts[0] if count == 4 else model).stat().st_size
    assert f"is GGUF files joined into one: the second begins at byte {second:,}" in sentence


def test_bytes_after_the_last_tensor_do_no_harm(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "padded.gguf"
    path.write_bytes(model.read_bytes() + bytes(100_000) + b"GGUF")
    assert ModelFile.open(path).top_k == 2


def test_a_part_missing(split_model: Path) -> None:
    split_model.with_name("split-00003-of-00004.gguf").unlink()
    assert "split-00003-of-00004.gguf is not beside it" in refusal(split_model)


def test_two_tensors_of_one_name(model: Path, tmp_path: Path) -> None:
    # llama.cpp reads a name up to its first zero byte: what follows does not tell two apart.
    data = model.read_bytes()
    for layer in (0, 1):
        name = b"blk.%d.ffn_gate_inp.weight" % layer
        assert data.count(name) == 1
        data = data.replace(name, b"a" + b"\0" * (len(name) - 2) + b"%d" % layer)
    path = tmp_path / "twice.gguf"
    path.write_bytes(data)
    assert "names two tensors 'a'" in refusal(path)


def test_an_architecture_that_cannot_be_printed(model: Path, tmp_path: Path) -> None:
    data = model.read_bytes()
    key = b"general.architecture" + (8).to_bytes(4, "little") + (8).to_bytes(8, "little")
    at = data.index(key) + len(key)
    path = tmp_path / "printed.gguf"
    path.write_bytes(data[:at] + b"q\rwen\n3\x1b" + data[at + 8 :])
    assert "q\\rwen\\n3\\x1b" in refusal(path)
