"""Prompts: from the command line, a file, standard input or a JSONL file; each makes one turn.

Texts and files go in; prompts and their tokens come out. Nothing here evaluates a token.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tracekit.trace.errors import TracekitError, UsageError
from tracekit_engine.model import Model


@dataclass(frozen=True)
class Prompt:
    """What one turn begins with: a text, or the messages of a chat as (role, content).

    Raises
    ------
    UsageError
        There is neither text nor message, or something in it is not Unicode text.
    """

    text: str | None = None
    messages: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.text and not self.messages:
            raise UsageError("The prompt is empty; a turn needs at least one token to begin with.")
        try:
            self.as_given.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                "The prompt is not UTF-8 text: it holds half a character, or bytes of another "
                "encoding; save it as UTF-8."
            ) from error

    @property
    def as_given(self) -> str:
        """The text, or the messages as JSON."""
        if self.text is not None:
            return self.text
        return json.dumps([{"role": r, "content": c} for r, c in self.messages], ensure_ascii=False)

    def tokens(self, model: Model, chat: bool) -> list[int]:
        """Return the tokens to evaluate.

        Parameters
        ----------
        chat : bool
            Put the messages, or the text as a user's message, into the model's chat template.

        Raises
        ------
        TracekitError
            There are messages without `chat`, no chat template, or no token.
        """
        if chat:
            text = model.chat_prompt(self.messages or (("user", self.text or ""),))
        elif self.text is not None:
            text = self.text
        else:
            raise UsageError("The prompts are chat messages; add --chat.")
        tokens = model.tokenize(text)
        if chat and len(tokens) > 1 and tokens[0] == tokens[1] == model.first_token:
            del tokens[0]  # both the template and the model write the token that begins a text
        if not tokens:
            raise UsageError(f"The prompt {text!r} makes no token; give it some text.")
        return tokens


def from_file(path: Path) -> Prompt:
    """Read a file, or standard input for ``-``, as one prompt without the last newline.

    Raises
    ------
    TracekitError
        It cannot be read, or is not UTF-8 text.
    """
    return Prompt(_read(path).removesuffix("\n"))


def from_jsonl(path: Path) -> list[Prompt]:
    """Read one prompt a line: ``"text"``, ``{"prompt": "text"}`` or ``{"messages": [...]}``.

    A message is ``{"role": "user", "content": "text"}``. Empty lines are skipped.

    Raises
    ------
    TracekitError
        The file cannot be read, or holds no prompt, or a line is not one; the sentence names it.
    """
    prompts = []
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if line.strip():
            try:
                prompts.append(_prompt(json.loads(line)))
            except (ValueError, RecursionError, UsageError) as error:
                reason = str(error).rstrip(".")
                raise UsageError(f"{path}, line {number}: {reason}.") from error
    if not prompts:
        raise UsageError(f"{path} holds no prompt.")
    return prompts


def _prompt(value: object) -> Prompt:
    if isinstance(value, str):
        return Prompt(value)
    if isinstance(value, dict) and isinstance(value.get("prompt"), str):
        return Prompt(value["prompt"])
    messages = value.get("messages") if isinstance(value, dict) else None
    if isinstance(messages, list) and messages and all(map(_is_message, messages)):
        return Prompt(messages=tuple((m["role"], m["content"]) for m in messages))
    raise ValueError('a line is a text, {"prompt": text} or {"messages": [{"role", "content"}, …]}')


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def _read(path: Path) -> str:
    if str(path) == "-" and sys.stdin is None:
        raise UsageError("Standard input is closed; name a file instead of -.")
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise TracekitError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        where = "standard input" if str(path) == "-" else path
        raise UsageError(
            f"{where} is not UTF-8 text: byte {data[error.start]:#04x} at {error.start:,}; "
            "save it as UTF-8."
        ) from error
