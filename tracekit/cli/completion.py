"""What the shell completes: policies, predictors, plots, studies, formats and bundled traces.

In comes the word that the user has typed so far, out come whole words that begin with it. Nothing
here imports what it names: importing the policies loads numba, which takes a second, and the user
waits for it after each press of Tab. The names are read from the source text instead.
"""

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from pathlib import Path
from textwrap import shorten

from tracekit import datasets

_PACKAGE = Path(__file__).resolve().parents[1]
_BREAKS = re.compile("[:=@]+")  # bash ends a word at these, and gives them as words of their own

_CUT_OFF = "_TRACEKIT_CUT_OFF"  # in the environment: what `join_bash_words` cut off the last word
_LONGEST = 60  # of a meaning, in characters: typer would break a longer one into two lines

# Words, each with what it means.
Choices = list[tuple[str, str]]


def join_bash_words(environ: MutableMapping[str, str]) -> None:
    """Put together in `environ` the words that bash broke at ``:``, ``=`` and ``@``.

    Bash replaces only what follows the last of these characters, so the last word is cut there. The
    functions below read from the environment what was cut off.

    Parameters
    ----------
    environ : mapping
        With ``COMP_WORDS``, the words in lines, and ``COMP_CWORD``, the index of the one to complete.
    """
    last = int(environ["COMP_CWORD"])
    words, environ[_CUT_OFF] = _joined(environ["COMP_WORDS"].split("\n")[: last + 1])
    environ["COMP_WORDS"] = "\n".join(words)
    environ["COMP_CWORD"] = str(len(words) - 1)


def _joined(broken: Sequence[str]) -> tuple[list[str], str]:
    words: list[str] = []
    head = ""
    was_break = False
    for word in broken:
        is_break = _BREAKS.fullmatch(word) is not None
        if words and (is_break or was_break):
            words[-1] += word
        else:
            words.append(word)
            head = ""
        if is_break:
            head = words[-1]
        was_break = is_break
    option, equals, value = words[-1].partition("=")
    if equals and option.startswith("-"):
        words[-1:] = [option, value]
        head = head.removeprefix(option + equals)
    words[-1] = words[-1].removeprefix(head)
    return words, head


def _cut_off() -> str:
    return os.environ.get(_CUT_OFF, "")


def _matching(choices: Iterable[tuple[str, str]], incomplete: str) -> Choices:
    """Return those of `choices` that begin with what was typed, as the shell needs them."""
    head = _cut_off()
    typed = head + incomplete
    return [
        (word.removeprefix(head), shorten(means, _LONGEST, placeholder="…"))
        for word, means in choices
        if word.startswith(typed)
    ]


def _in_list(choices: Iterable[tuple[str, str]], incomplete: str) -> Choices:
    """Complete the last of several words with commas between them; no word is offered twice."""
    before, comma, _ = (_cut_off() + incomplete).rpartition(",")
    taken = before.split(",")
    whole = ((before + comma + word, means) for word, means in choices if word not in taken)
    return _matching(whole, incomplete)


def _beside_files(choices: Iterable[tuple[str, str]], incomplete: str) -> Choices:
    """Complete one of `choices` or a file of this folder.

    Where none of `choices` fits, nothing is returned; the shell then completes files by itself.
    """
    found = _matching(choices, incomplete)
    if not found or _cut_off():
        return found
    paths = sorted(path for path in Path().iterdir() if not path.name.startswith("."))
    names = (path.name + "/" * (path.is_dir() and path.suffix != ".trace") for path in paths)
    return found + _matching(((name, "") for name in names if name != incomplete), incomplete)


def registered(package: str) -> Iterator[tuple[str, str]]:
    """Give the name and the summary of each class that a package of tracekit registers.

    Parameters
    ----------
    package : str
        ``policies`` or ``predictors``.
    """
    for path in sorted((_PACKAGE / package).glob("*.py")):
        for node in ast.parse(path.read_bytes()).body:
            if isinstance(node, ast.ClassDef) and any(map(_is_register, node.decorator_list)):
                texts = dict(_class_texts(node))
                yield texts["name"], texts["summary"]


def _is_register(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == "register"


def _class_texts(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for line in node.body:
        match line:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str() as text)):
                yield name, text


def policies(incomplete: str) -> Choices:
    """Complete a list of policies."""
    return _in_list(registered("policies"), incomplete)


def predictors(incomplete: str) -> Choices:
    """Complete a list of predictors."""
    return _in_list(registered("predictors"), incomplete)


def policies_and_predictors(incomplete: str) -> Choices:
    """Complete a list of policies and predictors."""
    return _in_list([*registered("policies"), *registered("predictors")], incomplete)


def kinds(incomplete: str) -> Choices:
    """Complete the kind of a plot."""
    return _matching(_kinds_of_plot(), incomplete)


def _kinds_of_plot() -> Iterator[tuple[str, str]]:
    """Give the name and the summary of each kind that a file of ``plots`` registers."""
    for path in sorted((_PACKAGE / "plots").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            match node:
                case ast.Call(
                    func=ast.Name(id="register"),
                    args=[
                        ast.Constant(value=str() as name),
                        ast.Constant(value=str() as summary),
                        *_,
                    ],
                ):
                    yield name, summary


def traces(incomplete: str) -> Choices:
    """Complete a trace: a file, or one that comes with tracekit."""
    bundled = (datasets.PREFIX + name for name in datasets.names() if name.endswith(".trace"))
    return _beside_files(((name, "comes with tracekit") for name in bundled), incomplete)


def studies(incomplete: str) -> Choices:
    """Complete a study: a file, or one of the folder ``replays``."""
    return _beside_files(((str(p), "") for p in sorted(Path("replays").glob("*.toml"))), incomplete)


def one_of(*words: str) -> Callable[[str], Choices]:
    """Make a function that completes one of `words`."""

    def complete(incomplete: str) -> Choices:
        return _matching(((word, "") for word in words), incomplete)

    return complete
