"""What ``tracekit record`` runs: one recording, with what a user sees of it while it goes on.

In: the model, the prompts and what is generated. Out: a trace, and what the engine says of it.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.cli.console import Console, ProgressLine, silence
from tracekit.cli.record_text import rates, summary
from tracekit.cli.record_transformers import note_what_is_left
from tracekit.figures import MIB

if TYPE_CHECKING:
    from tracekit.engine import Generation, Options, Progress, Prompt, Recording, Session


@dataclass(frozen=True)
class Task:
    """What is recorded, whatever the engine's options are.

    Attributes
    ----------
    console : Console
    model : Path
    turns : list of Prompt
    generation : Generation
    force : bool
        Replace a trace that exists.
    is_printed : bool
        Print the generated text.
    """

    console: Console
    model: Path
    turns: "list[Prompt]"
    generation: "Generation"
    force: bool
    is_printed: bool

    def record(self, options: "Options", output: Path) -> "Recording":
        """Record to `output`, and say how it ended.

        Raises
        ------
        TracekitError
            As of ``tracekit.record``.
        """
        from tracekit.engine import record

        console = self.console
        printer = _TextPrinter(console) if self.is_printed else None
        line = ProgressLine(shown=False) if self.is_printed else console.progress_line()
        progress = _Progress(line)
        try:
            recording = record(
                self.model,
                self.turns,
                output,
                options=options,
                generation=self.generation,
                force=self.force,
                command=["tracekit", *sys.argv[1:]],
                on_progress=progress.show,
                on_piece=printer.print if printer else None,
                on_start=lambda session: _describe_start(console, session),
            )
        except KeyboardInterrupt:
            progress.clear()
            if progress.has_begun:
                note_what_is_left(console, output)
            raise
        progress.clear()
        if printer:
            printer.end()
        console.note(summary(recording.path, recording.progress, recording.ended))
        if recording.agreement is not None and not recording.agreement.holds:
            console.warn(recording.agreement.sentence(str(recording.path)))
        return recording


def _describe_start(console: Console, session: "Session") -> None:
    file, store = session.file, session.store
    console.detail(
        f"{file.name}: {file.arch}, {len(session.plan.layers)} MoE layers of {file.n_expert} "
        f"experts, {file.quantisation}; context {session.options.n_ctx}, prompts in chunks of "
        f"{session.chunk}, {session.threads} compute threads."
    )
    if store is None:
        return
    cycle = session.token_cycle
    console.detail(
        f"Expert cache {store.budget / MIB:,.2f} MiB; a token touches {cycle / MIB:,.2f} MiB."
    )
    if store.budget < cycle:
        console.warn(
            f"The cache of {store.budget / MIB:,.2f} MiB is smaller than what one token touches, "
            f"{cycle / MIB:,.2f} MiB: most experts are evicted before the next token needs them."
        )


class _TextPrinter:
    """Prints tokens as they come, each turn on a new line, as long as stdout takes them."""

    def __init__(self, console: Console):
        self._console = console
        self._turn = 0
        self._is_open = True

    def print(self, turn: int, piece: bytes) -> None:
        self._write(b"\n" * (turn - self._turn) + piece)
        self._turn = turn

    def end(self) -> None:
        self._write(b"\n")

    def _write(self, data: bytes) -> None:
        if not self._is_open:
            return
        try:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        except OSError as error:
            self._is_open = False
            silence(1)
            self._console.warn(
                f"The text is no longer printed ({error.strerror}); the recording goes on."
            )


class _Progress:
    """Draws how far the recording is.

    Attributes
    ----------
    has_begun : bool
        Whether a pass was recorded.
    """

    def __init__(self, line: ProgressLine):
        self.has_begun = False
        self._line = line

    def show(self, progress: "Progress") -> None:
        self.has_begun = True
        label = f"turn {progress.turn + 1}/{progress.turns}"
        done, total = progress.decoded_in_turn, progress.n_decode
        self._line.draw(label, done, total, rates(progress))

    def clear(self) -> None:
        self._line.clear()
