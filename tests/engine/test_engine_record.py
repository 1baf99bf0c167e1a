"""Recordings: what the trace holds, and what is left of one that is cut short."""

import errno
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from families import slow_unless
from runs import TEXT, totals_by_pass

from tracekit.trace import Trace, TracekitError, UsageError
from tracekit_engine import (
    Capture,
    Generation,
    Options,
    Sampling,
    Session,
    Streaming,
    binding,
    record,
)
from tracekit_engine.model_file import ModelFile

LONG = Generation(n_decode=10_000, ignore_eos=True, n_ctx=1024)


def some_experts(model: Path, share: int = 4) -> Streaming:
    file = ModelFile.open(model)
    return Streaming(cache_bytes=file.n_expert * max(file.expert_bytes.values()) // share, lanes=2)


def test_turns_passes_steps(model: Path, tmp_path: Path) -> None:
    prompts = ["One two three", "Four"]
    options = Options(chunk=5, streaming=some_experts(model, 1))
    done = record(
        model,
        prompts,
        tmp_path / "run.trace",
        options=options,
        generation=Generation(4, ignore_eos=True),
    )
    trace = Trace.open(tmp_path / "run.trace")
    assert trace.complete
    assert trace.facts.prompts == prompts
    assert (trace.facts.ended, done.ended) == ("length", "length")
    steps = trace.steps(["turn", "pass", "step", "phase", "token", "piece"])
    # 13 and 4 tokens in chunks of 5, then 4 decode passes a turn
    assert steps["step"].tolist() == [*range(17), *range(8)]
    assert trace.kept.all()
    assert steps["turn"].tolist() == [0] * 17 + [1] * 8
    first, second = [0] * 5 + [1] * 5 + [2] * 3 + [3, 4, 5, 6], [7] * 4 + [8, 9, 10, 11]
    assert steps["pass"].tolist() == first + second
    assert steps["phase"].tolist() == [0] * 13 + [1] * 4 + [0] * 4 + [1] * 4
    assert b"".join(steps["piece"][:13]) == b"One two three"
    # Before the last layer only tokens with an output are kept: the prompt's last one.
    rows = trace.routing(["turn", "step", "layer", "phase"])
    last = (rows["layer"] == 2) & (rows["phase"] == 0)
    assert list(zip(rows["turn"][last], rows["step"][last], strict=True)) == [(0, 12), (1, 3)]
    assert (rows["layer"] == 1).sum() == 25
    assert done.progress.decoded == 8
    assert done.progress.prefilled == 17
    assert sum(totals_by_pass(trace, "hits").values()) == done.progress.totals.hits


def test_columns_left_out(model: Path, tmp_path: Path) -> None:
    options = Options(capture=Capture(logits=False, gate_inputs=False, embeddings=False))
    record(model, ["abc"], tmp_path / "run.trace", options=options, generation=Generation(2))
    trace = Trace.open(tmp_path / "run.trace")
    assert not any(map(trace.has, ("logits", "gate_input", "residency")))
    assert trace.has("weights")


def test_gate_inputs_in_half_precision(model: Path, tmp_path: Path) -> None:
    for dtype in ("f32", "f16"):
        options = Options(capture=Capture(gate_dtype=dtype))
        record(model, ["abc"], tmp_path / dtype, options=options, generation=Generation(3))
    full, half = (
        Trace.open(tmp_path / dtype).routing(["gate_input"])["gate_input"]
        for dtype in ("f32", "f16")
    )
    assert np.array_equal(full.astype(np.float16), half)


def test_one_prompt_is_one_turn(model: Path, tmp_path: Path) -> None:
    record(model, "abc", tmp_path / "run.trace", generation=Generation(1))
    assert Trace.open(tmp_path / "run.trace").facts.prompts == ["abc"]


def test_a_budget_that_is_not_a_whole_number(model: Path, tmp_path: Path) -> None:
    options = Options(streaming=Streaming(cache_bytes=1e6))
    record(model, "abc", tmp_path / "run.trace", options=options, generation=Generation(1))
    assert Trace.open(tmp_path / "run.trace").facts.engine.cache_bytes == 1_000_000


def test_the_prefill_alone(model: Path, tmp_path: Path) -> None:
    record(model, [TEXT], tmp_path / "run.trace", generation=Generation(0))
    phases = Trace.open(tmp_path / "run.trace").steps(["phase"])["phase"]
    assert len(phases) == len(TEXT)
    assert not phases.any()


def test_sampling(model: Path, tmp_path: Path) -> None:
    def sampled(name: str, seed: int, temperature: float = 1.5, top_p: float = 1.0) -> list[int]:
        generation = Generation(12, Sampling(temperature, top_p, seed), ignore_eos=True)
        record(model, ["abc", "abc"], tmp_path / name, generation=generation)
        return Trace.open(tmp_path / name).steps(["token"])["token"].tolist()

    first = sampled("a", 1)
    assert first[:15] == first[15:]  # a turn does not depend on the turns before it
    assert sampled("b", 1) == first
    assert sampled("c", 2) != first
    assert sampled("d", 1, temperature=0) == sampled("e", 2, temperature=1, top_p=1e-6)


def test_the_end_of_a_text(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = Generation(20, ignore_eos=True)
    record(model, ["abc"], tmp_path / "on.trace", generation=generation)
    tokens = Trace.open(tmp_path / "on.trace").steps(["token"])["token"].tolist()
    fifth = tokens[3 + 4]
    stop = 3 + tokens[3:].index(fifth)
    monkeypatch.setattr("tracekit_engine.model.Model.ends_text", lambda _, token: token == fifth)
    record(model, ["abc"], tmp_path / "run.trace", generation=Generation(20))
    trace = Trace.open(tmp_path / "run.trace")
    assert trace.facts.ended == "end of text"
    assert trace.steps(["token"])["token"].tolist() == tokens[:stop]
    record(model, ["abc"], tmp_path / "all.trace", generation=generation)
    assert Trace.open(tmp_path / "all.trace").steps(["token"])["token"].tolist() == tokens


def test_the_context(model: Path, tmp_path: Path) -> None:
    full = Generation(400, ignore_eos=True, n_ctx=256)
    record(model, ["abc"], tmp_path / "run.trace", generation=full)
    trace = Trace.open(tmp_path / "run.trace")
    assert trace.facts.ended == "context full"
    assert len(trace.steps(["step"])["step"]) == 256
    with pytest.raises(UsageError, match=r"longest prompt has 300 tokens, .* \(--ctx\) 256"):
        record(model, ["a" * 300], tmp_path / "x.trace", generation=full)
    with pytest.raises(UsageError, match=r"has 1,025 tokens, .* \(the model's\) 1,024"):
        record(model, ["a" * 1025], tmp_path / "x.trace")
    assert not (tmp_path / "x.trace").exists()


def test_more_experts_than_usual(model: Path, tmp_path: Path) -> None:
    options = Options(n_expert_used=5)
    record(model, ["abc"], tmp_path / "run.trace", options=options, generation=Generation(2))
    trace = Trace.open(tmp_path / "run.trace")
    assert trace.top_k == 5
    assert trace.routing(["experts"])["experts"].shape[1] == 5
    with pytest.raises(UsageError, match=r"--n-expert-used takes .* 1 to 8, .* not 9"):
        record(model, ["abc"], tmp_path / "x.trace", options=Options(n_expert_used=9))


def test_names_that_are_not_text(model: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"m\xff.gguf")
    odd.symlink_to(model)
    out = tmp_path / os.fsdecode(b"t\xff.trace")
    done = record(odd, "abc", out, generation=Generation(1), command=["record", str(odd)])
    assert done.path == out
    assert Trace.open(out).facts.command == ["record", str(odd)]


def test_an_output_that_exists(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.trace"
    record(model, ["abc"], out, generation=Generation(1))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(UsageError, match="--force"):
        record(model, ["abc"], out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    record(model, ["abcdef"], out, generation=Generation(0), force=True)
    assert len(Trace.open(out).steps(["step"])["step"]) == 6


def test_ctrl_c(model: Path, tmp_path: Path) -> None:
    def interrupt(progress: object) -> None:
        if progress.decoded == 5:
            os.kill(os.getpid(), signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    done = record(
        model, ["abc", "def"], tmp_path / "run.trace", generation=LONG, on_progress=interrupt
    )
    assert signal.getsignal(signal.SIGINT) is handler
    trace = Trace.open(tmp_path / "run.trace")
    assert (done.ended, trace.facts.ended, trace.complete) == ("interrupted", "interrupted", True)
    assert 3 + 5 <= len(trace.steps(["step"])["step"]) <= 3 + 6


@pytest.mark.parametrize("streamed", slow_unless([True, False], True))
def test_a_model_cut_while_it_is_recorded(model: Path, tmp_path: Path, streamed: bool) -> None:
    path = Path(shutil.copy(model, tmp_path / "shrinks.gguf"))
    out = tmp_path / "run.trace"

    def cut(progress: object) -> None:
        if progress.decoded == 200:
            os.truncate(path, ModelFile.open(path).tensors["blk.1.ffn_up_exps.weight"].start)

    with pytest.raises(TracekitError, match=r"shrinks\.gguf was cut to") as caught:
        record(
            path,
            ["abc"],
            out,
            options=Options(streaming=some_experts(path) if streamed else None),
            generation=LONG,
            on_progress=cut,
        )
    assert "\n" not in str(caught.value)
    trace = Trace.open(out)
    assert not trace.complete
    assert len(trace.steps(["step"])["step"]) >= 3 + 200


@pytest.mark.slow  # fifty turns; the fast suite fills the disk of a writer: test_writer
def test_a_full_disk(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, really_sync, calls = tmp_path / "run.trace", os.fsync, []

    def filling(file: int) -> None:
        calls.append(file)
        if len(calls) > 24:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        really_sync(file)

    monkeypatch.setattr(os, "fsync", filling)
    with pytest.raises(TracekitError, match=r"the disk is full; free some space"):
        record(model, ["abc"] * 50, out, generation=LONG)
    monkeypatch.undo()
    trace = Trace.open(out)
    assert not trace.complete
    assert not list(out.glob("*.tmp"))


@pytest.mark.parametrize(
    ("prompts", "sentence"),
    [([], "no prompt"), ([""], "prompt is empty"), (["fine", ""], "prompt is empty")],
)
def test_no_prompt(model: Path, tmp_path: Path, prompts: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        record(model, prompts, tmp_path / "run.trace")
    assert list(tmp_path.iterdir()) == []


def test_numbers_out_of_range() -> None:
    for make in (
        lambda: Generation(n_decode=-1),
        lambda: Sampling(temperature=-0.1),
        lambda: Sampling(temperature=float("nan")),
        lambda: Sampling(top_p=0),
        lambda: Sampling(top_p=0.5),
        lambda: Sampling(seed=-1),
        lambda: Options(n_ctx=0),
        lambda: Options(threads=0),
        lambda: Options(chunk=0),
        lambda: Streaming(lanes=0),
        lambda: Streaming(cache_bytes=-1),
        lambda: Streaming(cache_bytes=1e30),
    ):
        with pytest.raises(UsageError, match=r"takes .* not |give"):
            make()


@pytest.mark.parametrize("n_ctx", [2, 1 << 40])
def test_a_context_out_of_range_frees_the_model(
    n_ctx: int, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama, freed = binding.load(), []
    free = llama.llama_model_free
    monkeypatch.setattr(llama, "llama_model_free", lambda p: (freed.append(p), free(p)))
    with pytest.raises(UsageError, match=r"give a larger --ctx|--ctx takes"):
        record(model, "abc", tmp_path / "run.trace", generation=Generation(n_ctx=n_ctx))
    assert len(freed) == 1


def test_a_session_is_closed_once(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llama, freed = binding.load(), []
    for name in ("llama_free", "llama_model_free", "llama_batch_free"):
        really = getattr(llama, name)
        monkeypatch.setattr(llama, name, lambda p, f=really, n=name: (freed.append(n), f(p)))
    session = Session(model, Options(streaming=Streaming()))
    session.close()
    session.close()
    assert sorted(freed) == ["llama_batch_free", "llama_free", "llama_model_free"]
    with pytest.raises(ValueError, match="the session is closed"):
        session.evaluate([1], want_logits=True)


def test_a_session_is_open_once_more_after_a_turn(model: Path) -> None:
    with Session(model, Options(threads=1)) as session:
        runs = []
        for _ in range(2):
            session.clear()
            session.evaluate(session.model.tokenize(TEXT), want_logits=True)
            runs.append(session.logits())
        assert np.array_equal(*runs)
        with pytest.raises(ValueError, match="a pass takes 1 to 512 tokens, not 0"):
            session.evaluate([], want_logits=True)
