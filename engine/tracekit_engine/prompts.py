"""Prompts: from the command line, a file, standard input or a JSONL file; each makes one turn.

Texts and files go in; prompts and their tokens come out. Nothing here evaluates a token.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.trace.errors import TracekitError, UsageError
from tracekit_engine.model import Model


@dataclass(frozen=True)
class Prompt:
    """What one turn begins with: a text, or the messages of a chat as (role, content).

    Attributes
    ----------
    text : str or None
    messages : tuple of (str, str)
    source : str or None
        Where the prompt stands, for sentences about it: ``prompts.jsonl, line 3``.

    Raises
    ------
    UsageError
        There is neither text nor message, or something in it is not Unicode text.
    """

    text: str | None = None
    messages: tuple[tuple[str, str], ...] = ()
    source: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.text and not self.messages:
            raise self._refusal(
                "the prompt is empty; a turn needs at least one token to begin with"
            )
        try:
            self.as_given.encode()
        except UnicodeEncodeError as error:
            raise self._refusal(
                "the prompt is not UTF-8 text: it holds half a character, or bytes of another "
                "encoding; save it as UTF-8"
            ) from error

    def _refusal(self, reason: str) -> UsageError:
        if self.source:
            return UsageError(f"{self.source}: {reason}.")
        return UsageError(f"{reason[0].upper()}{reason[1:]}.")

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
            raise self._refusal("the prompt consists of chat messages; add --chat")
        tokens = model.tokenize(text)
        if chat and len(tokens) > 1 and tokens[0] == tokens[1] == model.first_token:
            del tokens[0]  # both the template and the model write the token that begins a text
        if not tokens:
            raise self._refusal(f"the prompt {text!r} makes no token; give it some text")
        return tokens


def from_file(path: Path) -> Prompt:
    """Read a file, or standard input for ``-``, as one prompt without the last newline.

    Raises
    ------
    TracekitError
        It cannot be read, or is not UTF-8 text.
    """
    return Prompt(_read(path).removesuffix("\n"), source=_called(path))


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
            source = f"{_called(path)}, line {number}"
            try:
                prompts.append(_prompt(json.loads(line), source))
            except (ValueError, RecursionError) as error:
                raise UsageError(f"{source}: {str(error).rstrip('.')}.") from error
    if not prompts:
        raise UsageError(f"{_called(path)} holds no prompt.")
    return prompts


def _prompt(value: object, source: str) -> Prompt:
    if isinstance(value, str):
        return Prompt(value, source=source)
    if isinstance(value, dict) and isinstance(value.get("prompt"), str):
        return Prompt(value["prompt"], source=source)
    messages = value.get("messages") if isinstance(value, dict) else None
    if isinstance(messages, list) and all(map(_is_message, messages)):
        told = tuple((message["role"], message["content"]) for message in messages)
        return Prompt(messages=told, source=source)
    raise ValueError('a line is a text, {"prompt": text} or {"messages": [{"role", "content"}, …]}')


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def _called(path: Path) -> str:
    return "standard input" if str(path) == "-" else str(path)


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
        raise UsageError(
            f"{_called(path)} is not UTF-8 text: byte {data[error.start]:#04x} at {error.start:,}; "
            "save it as UTF-8."
        ) from error
