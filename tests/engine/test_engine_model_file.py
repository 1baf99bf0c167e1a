"""What is said of files that are no model, or no whole one, or none with experts."""

from pathlib import Path

import pytest
import tiny_models
from gguf import GGUFWriter

from engine.model_file import ModelFile
from tracekit.trace import TracekitError


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


def test_a_part_missing(split_model: Path) -> None:
    split_model.with_name("split-00003-of-00004.gguf").unlink()
    assert "split-00003-of-00004.gguf is not beside it" in refusal(split_model)
