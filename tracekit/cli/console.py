"""What a command says besides its result: sentences and progress, all on stderr."""

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
    """Print to stderr; where that cannot be, the work goes on in silence."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:  # its disk is full, its reader or its terminal gone
        silence(2)


def say_error(sentence: str) -> None:
    """Print the sentence a command fails with."""
    say(f"{_styled('Error:', '31')} {printable(sentence)}")


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once: amid imports an exception may be lost, or be printed."""
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
    """Send what is still in the buffer of 1, stdout, or 2, stderr, nowhere.

    Python flushes it once more at exit.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream)
    os.close(nowhere)


class Console:
    """The voice of one command.

    Parameters
    ----------
    quiet : bool
        Say nothing but errors.
    verbose : bool
        Say more.
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

    @contextmanager
    def progress(self, label: str) -> Iterator[Callable[[int, int], None] | None]:
        """Give a function to call with (done, total); None where nobody watches."""
        if self.quiet or not sys.stderr.isatty():
            yield None
            return
        start = shown = time.monotonic()

        def update(done: int, total: int) -> None:
            nonlocal shown
            now = time.monotonic()
            # Short work shows no bar; a long one redraws it ten times a second at most.
            if now - start > 0.5 and now - shown > 0.1:
                shown = now
                bar = "#" * (30 * done // max(total, 1))
                say(f"{_CLEAR}{label} [{bar:<30}] {done}/{total}", end="")

        try:
            yield update
        finally:
            if shown > start:
                say(_CLEAR, end="")
