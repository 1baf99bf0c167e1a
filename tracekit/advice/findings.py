"""A finding: a plain sentence, the figures in it, and the command that shows each of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Number:
    """A figure of a finding.

    Attributes
    ----------
    text : str
        As the sentence has it.
    value : float
        Before it was rounded, in the unit of `column`.
    column : str
        The column of the result of `command` that has it.
    row : mapping
        Values of other columns that single out its row; parameters by their names.
    command : str
        It prints that result with ``--format json``; ``tracekit plot`` writes it with ``-o FILE.csv``.
    """

    text: str
    value: float
    column: str
    row: Mapping[str, Any]
    command: str


@dataclass(frozen=True)
class Finding:
    """What follows from a trace, for whoever decides what to build.

    Attributes
    ----------
    topic : str
        What it is about, in a word or two.
    sentence : str
    numbers : sequence of Number
        The figures of the sentence that a command shows.
    """

    topic: str
    sentence: str
    numbers: Sequence[Number] = field(default=())

    @property
    def commands(self) -> list[str]:
        """The commands that show its figures, each once."""
        return list(dict.fromkeys(number.command for number in self.numbers))

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON has it."""
        return {
            "topic": self.topic,
            "sentence": self.sentence,
            "commands": self.commands,
            "numbers": [{**vars(number), "row": dict(number.row)} for number in self.numbers],
        }
