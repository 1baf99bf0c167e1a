"""What a format to write is, the registry of them, and what of a trace a format leaves out.

In: a trace and a path. Out: for a subclass of `ExportFormat`, a file. This module knows no format by
name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import BinaryIO, ClassVar

from tracekit.registry import Registry
from tracekit.trace import Trace
from tracekit.trace.layers import ARRAYS
from tracekit.trace.passes import kept_steps
from tracekit.trace.schema import LAYERS_FILE, SINCE_VERSION_3


def marks_kept(trace: Trace) -> bool:
    """Say whether tokens are marked that did not stay though no later pass takes them back."""
    places = trace.steps(["turn", "pass", "step"])
    implied = kept_steps(places["turn"], places["pass"], places["step"])
    return bool((trace.kept != implied).any())


def _has_any(trace: Trace, names: Collection[str]) -> bool:
    return any(trace.has_steps(name) for name in names)


def _has_routers(trace: Trace) -> bool:
    layers = trace.rows(LAYERS_FILE)
    return any(layers.has_values(name) for name in ARRAYS)


_TIMES = ("wall_ms", "io_ms", "stall_ms", "read_bytes", "lookups", "hits", *SINCE_VERSION_3)
# What a trace may hold beside the experts: in words, and whether a trace has it.
CONTENTS: Mapping[str, tuple[str, Callable[[Trace], bool]]] = {
    "place": ("turns, phases and steps", lambda trace: True),
    "weights": ("weights", lambda trace: trace.has("weights")),
    "residency": ("residency", lambda trace: trace.has("residency")),
    "dropped": ("dropped experts", lambda trace: trace.has("dropped")),
    "logits": ("logits", lambda trace: trace.has("logits")),
    "gate_input": ("gate inputs", lambda trace: trace.has("gate_input")),
    "kept": ("which tokens did not stay", marks_kept),
    "token": ("token ids", lambda trace: trace.has_steps("token")),
    "piece": ("texts of tokens", lambda trace: trace.has_steps("piece")),
    "embedding": ("embeddings", lambda trace: trace.has_steps("embedding")),
    "times": ("times and reads of passes", lambda trace: _has_any(trace, _TIMES)),
    "routers": ("router matrices and biases", _has_routers),
    "model": ("the model's numbers of layers and experts", lambda trace: True),
    "run": ("the rest of trace.json", lambda trace: True),
}


class ExportFormat(ABC):
    """A file format that a trace can be written as: derive, set the attributes, write `write`.

    Attributes
    ----------
    name : str
        What ``tracekit export --format`` calls it.
    endings : tuple of str
        Ends of file names that mean this format, in any case; empty: only ``--format`` does.
    summary : str
        One line: what stands in the file.
    carries : collection of str
        Which of `CONTENTS` the file holds.
    """

    name: ClassVar[str]
    endings: ClassVar[tuple[str, ...]] = ()
    summary: ClassVar[str]
    carries: ClassVar[Collection[str]] = ()

    @abstractmethod
    def write(self, trace: Trace, file: BinaryIO, path: Path) -> None:
        """Write a trace to a new file, which becomes `path`.

        Raises
        ------
        TraceError
            The format cannot hold the trace; the sentence says why.
        """

    def notes(self, trace: Trace) -> list[str]:
        """Return what a user of the file should know, one sentence each."""
        return []

    def import_flags(self, trace: Trace) -> list[str] | None:
        """Return the flags of ``tracekit import`` that the file needs; None: it is never imported.

        With them, the file becomes a trace that replays to the same figures.
        """
        return None

    @classmethod
    def lacks(cls) -> list[str]:
        """Return what no file of this format holds, in words."""
        return [words for name, (words, _) in CONTENTS.items() if name not in cls.carries]

    def leaves_out(self, trace: Trace) -> list[str]:
        """Return what this trace has and the file does not, in words."""
        return [
            words
            for name, (words, is_in) in CONTENTS.items()
            if name not in self.carries and is_in(trace)
        ]


EXPORTS: Registry[ExportFormat] = Registry("format to write", ExportFormat)
register = EXPORTS.register
