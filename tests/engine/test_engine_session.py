"""What a session and its model refuse: wrong tokens, damaged weights, missing logits, a closed one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_models
from runs import lane_threads

from tracekit.trace import TracekitError
from tracekit_engine import Options, Session, Streaming
from tracekit_engine.model_file import ModelFile


@pytest.mark.parametrize("token", [-1, 257, 2**32, 2**40])
def test_tokens_outside_the_vocabulary(token: int, model: Path) -> None:
    with Session(model) as session:
        for use in (
            session.model.piece,
            session.model.ends_text,
            lambda token: session.evaluate([0, token], want_logits=True),
        ):
            with pytest.raises(ValueError, match=f"{token} is not a token: they go from 0 to 256"):
                use(token)


def test_logits_before_a_pass(model: Path) -> None:
    with Session(model) as session:
        for before in (
            lambda: None,
            lambda: session.evaluate([1], want_logits=False),
            session.clear,
        ):
            before()
            with pytest.raises(ValueError, match="no logits: evaluate with want_logits"):
                session.logits()
            with pytest.raises(ValueError, match="no logits"):
                _ = session.context
            session.evaluate([1], want_logits=True)
            assert np.isfinite(session.logits()).all()


def test_a_full_context(model: Path) -> None:
    with Session(model, Options(n_ctx=16)) as session:
        session.evaluate(list(range(15)), want_logits=True)
        with pytest.raises(ValueError, match="16 tokens holds 15, so 2 more have no room"):
            session.evaluate([1, 2], want_logits=True)
        assert session.evaluate([1], want_logits=True).first_step == 15  # nothing is forgotten


def test_a_session_that_is_dropped_is_closed(model: Path) -> None:
    session = Session(model, Options(streaming=Streaming(cache_bytes=1 << 20, lanes=2)))
    (lane,), loaded = lane_threads(), session.model
    del session
    assert not lane.is_alive()
    with pytest.raises(ValueError, match="the model is closed"):
        _ = loaded.pointer


@pytest.mark.slow
def test_a_process_ends_with_a_session_open(model: Path) -> None:
    code = f"""
import tracekit
from tracekit.engine import Options, Streaming
session = tracekit.Session({str(model)!r}, Options(streaming=Streaming(1 << 20)))
session.evaluate([1], want_logits=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_session(model: Path) -> None:
    with Session(model) as session:
        session.evaluate([1], want_logits=True)
    for use in (
        session.clear,
        session.logits,
        lambda: session.context,
        lambda: session.evaluate([1], want_logits=True),
    ):
        with pytest.raises(ValueError, match="the session is closed"):
            use()
    for use in (
        lambda: session.model.tokenize("a"),
        lambda: session.model.piece(1),
        lambda: session.model.ends_text(1),
        lambda: session.model.chat_prompt([("user", "a")]),
        lambda: session.model.n_layer,
        lambda: session.model.n_ctx_train,
    ):
        with pytest.raises(ValueError, match="the model is closed"):
            use()


@pytest.mark.parametrize("name", ["blk.1.ffn_gate_inp.weight", "output.weight"])
def test_weights_that_are_not_numbers(name: str, model: Path, tmp_path: Path) -> None:
    place = ModelFile.open(model).tensors[name]
    damaged = bytearray(model.read_bytes())
    damaged[place.start : place.start + 4] = np.float32(np.nan).tobytes()
    path = tmp_path / "nan.gguf"
    path.write_bytes(damaged)
    with pytest.raises(
        TracekitError, match=r"nan\.gguf computes values that are not finite numbers"
    ):
        Session(path)


def test_an_expert_that_is_not_a_number(tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "nan.gguf", "llama")
    with Session(path) as session:
        used = session.evaluate([session.model.first_token], want_logits=True).captured.experts
    file = ModelFile.open(path)
    damaged = bytearray(path.read_bytes())
    # The first token's experts stay as they are, so that a session can be opened.
    for expert in set(range(file.n_expert)) - set(used[0].tolist()):
        start, stop = file.tensors["blk.0.ffn_down_exps.weight"].slice(expert)
        damaged[start:stop] = np.full((stop - start) // 4, np.nan, np.float32).tobytes()
    path.write_bytes(damaged)
    with (
        Session(path) as session,
        pytest.raises(TracekitError, match=r"nan\.gguf computes .* the router of layer 1:"),
    ):
        session.evaluate(list(range(16)), want_logits=True)


def test_a_context_length_of_32_bits(tmp_path: Path) -> None:
    odd = {"context_length": 2**32 - 1}
    path = tiny_models.write(tmp_path / "long.gguf", "qwen3moe", odd=odd)
    with Session(path) as session:
        assert session.model.n_ctx_train == 2**32 - 1
