"""Streaming: the same bits at any budget, memory within the budget, sentences where it cannot work."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_models
from families import slow_unless
from runs import TEXT, greedy

from tracekit import datasets
from tracekit.figures import MIB
from tracekit.trace import TracekitError, UsageError
from tracekit_engine import Options, Session, Streaming, ggml
from tracekit_engine.budget import available_memory, bank_bytes
from tracekit_engine.model_file import ModelFile


def budgets(path: Path) -> dict[str, int]:
    file = ModelFile.open(path)
    layer = file.n_expert * max(file.expert_bytes.values())
    return {"one layer": layer, "half": bank_bytes(file) // 2, "all": bank_bytes(file)}


@pytest.fixture(scope="module")
def resident_run() -> object:
    return greedy(datasets.model_path(), Options(threads=1), 200)


def test_forty_tokens_to_the_bit() -> None:
    path = datasets.model_path()
    streaming = Streaming(budgets(path)["half"], lanes=4, direct_io=True)
    resident = greedy(path, Options(threads=1), 40)
    assert greedy(path, Options(threads=1, streaming=streaming), 40) == resident


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["one layer", "half", "all"])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("direct", [False, True])
def test_two_hundred_tokens_to_the_bit(
    resident_run: object, budget: str, lanes: int, direct: bool
) -> None:
    path = datasets.model_path()
    streaming = Streaming(budgets(path)[budget], lanes, direct)
    assert greedy(path, Options(threads=1, streaming=streaming), 200) == resident_run


@pytest.mark.parametrize("chunk", slow_unless([1, 3, 16], 3))
def test_a_small_budget_at_the_same_chunk(model: Path, chunk: int) -> None:
    file = ModelFile.open(model)
    least = file.top_k * max(file.expert_bytes.values())
    resident = greedy(model, Options(threads=1, chunk=chunk), 20)
    streaming = Streaming(cache_bytes=min(chunk * least, budgets(model)["one layer"]))
    assert greedy(model, Options(threads=1, chunk=chunk, streaming=streaming), 20) == resident


def test_a_split_model_streams(tmp_path: Path, model: Path) -> None:
    tiny_models.write(tmp_path / "split.gguf", "qwen3moe", tensors_a_file=12)
    streaming = Streaming(budgets(model)["one layer"])
    split = greedy(
        tmp_path / "split-00001-of-00004.gguf", Options(threads=1, streaming=streaming), 20
    )
    assert split == greedy(model, Options(threads=1), 20)


def test_two_sessions_of_one_file(model: Path) -> None:
    options = Options(threads=1, streaming=Streaming(budgets(model)["one layer"]))
    with Session(model, options) as first, Session(model, options) as second:
        tokens = first.model.tokenize(TEXT)[:8]
        first.evaluate(tokens, want_logits=True)
        second.evaluate(tokens, want_logits=True)
        assert np.array_equal(first.logits(), second.logits())


def test_a_prompt_is_cut_into_chunks_whose_batch_fits(model: Path) -> None:
    file = ModelFile.open(model)
    one = max(file.expert_bytes.values())
    for experts, chunk in ((2, 1), (5, 2), (7, 3), (8, 512)):
        options = Options(streaming=Streaming(cache_bytes=experts * one))
        with Session(model, options) as session:
            assert session.chunk == chunk
            session.evaluate(session.model.tokenize(TEXT)[:chunk], want_logits=True)
            assert session.store.resident_bytes <= experts * one


def test_a_budget_under_one_tokens_experts(model: Path) -> None:
    least = 2 * max(ModelFile.open(model).expert_bytes.values())
    with pytest.raises(UsageError, match=r"too small: one token's 2 experts .* give --cache-mib 1"):
        Session(model, Options(streaming=Streaming(cache_bytes=least - 1)))
    with pytest.raises(UsageError, match=r"one token's 3 experts"):
        Session(model, Options(n_expert_used=3, streaming=Streaming(cache_bytes=least)))


@pytest.mark.parametrize("bundled", [False, True])
def test_the_automatic_budget(model: Path, bundled: bool) -> None:
    path = datasets.model_path() if bundled else model
    with Session(path, Options(streaming=Streaming())) as session:
        assert session.store.budget == bank_bytes(session.file) < available_memory()


@pytest.mark.slow  # a model of forty layers
def test_memory_holds_what_the_budget_says(tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "deep.gguf", "llama", layers=40)
    bank = bank_bytes(ModelFile.open(path))
    assert bank > 7 * MIB
    options = Options(threads=1, streaming=Streaming(cache_bytes=bank // 8))
    with Session(path, options) as session:
        session.evaluate(session.model.tokenize(TEXT)[:1], want_logits=True)
        experts = [t for group in session.file.expert_tensors.values() for t in group]
        for token in range(64):
            session.evaluate([token], want_logits=True)
            assert session.store.resident_bytes <= bank // 8
        held = sum(_resident(session, t.start, t.stop) for t in experts)
        pages_between = 2 * 4096 * len(experts) * session.file.n_expert // 8
        assert session.store.resident_bytes <= held + 1
        assert held <= bank // 8 + pages_between


def _resident(session: Session, start: int, stop: int) -> int:
    address = session.plan.weights["blk.0.ffn_gate_exps.weight"]
    base = address - session.file.tensors["blk.0.ffn_gate_exps.weight"].start
    page = os.sysconf("SC_PAGESIZE")
    first, last = (base + start) // page, -(-(base + stop) // page)
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        pagemap.seek(8 * first)
        entries = np.frombuffer(pagemap.read(8 * (last - first)), np.uint64)
    return page * int((entries >> np.uint64(63)).sum())


def test_a_model_cut_while_it_streams(model: Path, tmp_path: Path) -> None:
    path = shutil.copy(model, tmp_path / "shrinks.gguf")
    file = ModelFile.open(path)
    least = file.top_k * max(file.expert_bytes.values())
    with Session(path, Options(threads=1, streaming=Streaming(cache_bytes=least))) as session:
        session.evaluate([1], want_logits=True)
        os.truncate(path, file.tensors["blk.1.ffn_gate_exps.weight"].start)
        with pytest.raises(TracekitError, match=r"shrinks\.gguf was cut to [\d,]+ bytes"):
            [session.evaluate([token], want_logits=True) for token in range(10)]


def test_a_path_with_line_ends(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a\rb\nc d.gguf"
    path.write_bytes(model.read_bytes())
    with Session(path, Options(streaming=Streaming())) as session:
        session.evaluate([1], want_logits=True)


def test_no_direct_io_where_the_file_system_has_none(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really_open = os.open

    def refusing(path: object, flags: int, *rest: object) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return really_open(path, flags, *rest)

    monkeypatch.setattr(os, "open", refusing)
    with pytest.raises(TracekitError, match=r"leave --direct-io away"):
        Session(model, Options(streaming=Streaming(direct_io=True)))


def test_layouts_that_disagree_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_check = ggml.check_layout

    def misread(tensor: ggml.Tensor) -> None:
        moved = ggml.Tensor.from_address(tensor.address + 8)
        really_check(
            SimpleNamespace(
                address=tensor.address,
                name=moved.name,
                data=moved.data,
                ne=moved.ne,
                nb=moved.nb,
                type=moved.type,
            )
        )

    monkeypatch.setattr("tracekit_engine.graph.check_layout", misread)
    with pytest.raises(TracekitError, match=r"lays its tensors out differently"):
        Session(model, Options())
