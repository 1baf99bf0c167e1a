"""What a command says besides its result: sentences and progress, all on stderr.

In come sentences and counts; nothing here knows what a trace or a result is.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tracekit.figures import printable

INTERRUPTED = 130
_CLEAR = "\r\x1b[K"


def _styled(text: str, code: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stderr.isatty() else f"\x1b[{code}m{text}\x1b[0m"


def say(text: str, end: str = "\n") -> None:
    """Print to stderr; if that fails, the work goes on and later text is dropped."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:  # the disk is full, or the reader or the terminal is gone
        silence(2)


def say_error(sentence: str) -> None:
    """Print the sentence that says why a command failed."""
    say(f"{_styled('Error:', '31')} {printable(sentence)}")


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once.

    While modules are imported, the exception of a Ctrl-C may be lost or printed as a traceback.
    """
    previous = signal.getsignal(signal.SIGINT)
    if (
        previous is not signal.default_int_handler
        or threading.current_thread() is not threading.main_thread()
    ):
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def _end(_signal: int, _frame: object) -> None:
    say_error("Interrupted.")
    os._exit(INTERRUPTED)


def silence(stream: int) -> None:
    """Drop all further output of stdout (`stream` 1) or stderr (2).

    Python flushes the stream's buffer once more at exit; without this it would fail there.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


class ProgressLine:
    """One line on the terminal that says how far the work is.

    It first appears after half a second, so that short work shows none, and is redrawn ten times
    a second at most.

    Parameters
    ----------
    shown : bool
        Whether to draw it; False where nobody watches.
    """

    def __init__(self, shown: bool):
        self._shown = shown
        self._next = time.monotonic() + 0.5
        self._is_drawn = False

    def draw(self, label: str, done: int, total: int, more: str = "") -> None:
        """Draw ``label [####      ] done/total`` and then `more`, if it is time to."""
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 0.1
        self._is_drawn = True
        bar = "#" * (30 * done // max(total, 1))
        say(f"{_CLEAR}{label} [{bar:<30}] {done}/{total}{more}", end="")

    def clear(self) -> None:
        """Remove the line."""
        if self._is_drawn:
            self._is_drawn = False
            say(_CLEAR, end="")


class Console:
    """What one command says on stderr.

    Parameters
    ----------
    quiet : bool
        Say nothing but errors.
    verbose : bool
        Say details too.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False):
        self.quiet = quiet
        self.verbose = verbose and not quiet

    def warn(self, sentence: str) -> None:
        """Say what the reader of the result must know."""
        if not self.quiet:
            say(f"{_styled('Warning:', '33')} {printable(sentence)}")

    def note(self, sentence: str) -> None:
        """Say what was done, or what to do next."""
        if not self.quiet:
            say(printable(sentence))

    def detail(self, sentence: str) -> None:
        """Say what only ``-v`` asks for."""
        if self.verbose:
            say(printable(sentence))

    def progress_line(self) -> ProgressLine:
        """Return a progress line, which is drawn only on a terminal."""
        return ProgressLine(shown=not self.quiet and sys.stderr.isatty())

    @contextmanager
    def progress(self, label: str) -> Iterator[Callable[[int, int], None]]:
        """Give a function that draws progress when it is called with (done, total)."""
        line = self.progress_line()
        try:
            yield lambda done, total: line.draw(label, done, total)
        finally:
            line.clear()
