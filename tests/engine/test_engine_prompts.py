"""Prompts from everywhere they may come from, and the sentences about bad ones."""

import io
import sys
from pathlib import Path

import pytest
import tiny_models

from tracekit.trace import TracekitError, UsageError
from tracekit_engine import Options, Prompt, Session
from tracekit_engine.prompts import from_file, from_jsonl


def test_jsonl(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(
        '"plain"\n\n{"prompt": "named", "id": 7}\n'
        '{"messages": [{"role": "system", "content": "Be brief."}, '
        '{"role": "user", "content": "Hi"}]}\n'
    )
    plain, named, chat = from_jsonl(path)
    assert (plain.text, named.text, chat.text) == ("plain", "named", None)
    assert chat.messages == (("system", "Be brief."), ("user", "Hi"))
    assert chat.as_given.startswith('[{"role": "system"')


@pytest.mark.parametrize(
    "line", ["{", "7", "[]", '""', '{"text": "x"}', '{"messages": []}', "nan,"]
)
def test_a_bad_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(UsageError, match=r"prompts\.jsonl, line 2: "):
        from_jsonl(path)


def test_no_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n\n")
    with pytest.raises(UsageError, match="holds no prompt"):
        from_jsonl(path)


def test_a_file_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "prompt.txt"
    path.write_bytes("Größe\r\nzwei\n".encode())
    assert from_file(path) == Prompt("Größe\nzwei")
    stdin = io.TextIOWrapper(io.BytesIO(b"from a pipe\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert from_file(Path("-")) == Prompt("from a pipe")


@pytest.mark.parametrize("nothing", [{}, {"text": ""}, {"messages": ()}])
def test_an_empty_prompt(nothing: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        Prompt(**nothing)


def test_bytes_that_are_not_text(tmp_path: Path) -> None:
    path = tmp_path / "prompt.bin"
    path.write_bytes(b"abc\xff\xfe")
    with pytest.raises(UsageError, match=r"prompt\.bin is not UTF-8 text: byte 0xff at 3"):
        from_file(path)
    with pytest.raises(UsageError, match="not UTF-8"):
        Prompt(b"\xff".decode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(
    "line",
    [r'"\ud800"', r'{"prompt": "\udc00"}', r'{"messages": [{"role": "user", "content": "\ud8"}]}'],
)
def test_half_a_character(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(UsageError, match=r"prompts\.jsonl, line 2: .*[^.]\.$"):
        from_jsonl(path)


def test_a_closed_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match="Standard input is closed"):
        from_file(Path("-"))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TracekitError, match=r"absent cannot be read: No such file"):
        from_file(tmp_path / "absent")
    with pytest.raises(TracekitError, match=r"cannot be read: Is a directory\."):
        from_file(tmp_path)


def test_tokens_of_a_prompt(model: Path) -> None:
    with Session(model, Options()) as session:
        tiny = session.model
        text = "Größe <|endoftext|>"
        tokens = Prompt(text).tokens(tiny, chat=False)
        assert b"".join(tiny.piece(token) for token in tokens) == text.encode()
        assert tokens[-1] == tiny.first_token
        assert tiny.ends_text(tokens[-1])
        with pytest.raises(UsageError, match="add --chat"):
            Prompt(messages=(("user", "Hi"),)).tokens(tiny, chat=False)
        with pytest.raises(TracekitError, match="carries no chat template"):
            Prompt("Hi").tokens(tiny, chat=True)


def test_a_chat_template(tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "chat.gguf", "llama", chat_template="chatml")
    with Session(path, Options()) as session:
        tokens = Prompt("Hi").tokens(session.model, chat=True)
        text = b"".join(session.model.piece(token) for token in tokens).decode()
        assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_chat_template_llama_cpp_does_not_know(tmp_path: Path) -> None:
    path = tiny_models.write(tmp_path / "odd.gguf", "llama", chat_template="{{ odd }}")
    with Session(path, Options()) as session, pytest.raises(TracekitError, match="does not know"):
        Prompt("Hi").tokens(session.model, chat=True)
