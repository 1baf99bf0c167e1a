"""What a command says besides its result: sentences and progress, all on stderr."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tracekit.table import printable

_CLEAR = "\r\x1b[K"


def _styled(text: str, code: str) -> str:
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return text if plain or not sys.stderr.isatty() else f"\x1b[{code}m{text}\x1b[0m"


def say_error(sentence: str) -> None:
    """Print the sentence a command fails with."""
    print(f"{_styled('Error:', '31')} {printable(sentence)}", file=sys.stderr)


def silence_stdout() -> None:
    """Send what is still in stdout's buffer nowhere: Python flushes it once more at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
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
            print(f"{_styled('Warning:', '33')} {printable(sentence)}", file=sys.stderr)

    def note(self, sentence: str) -> None:
        """Say what was done, or what to do next."""
        if not self.quiet:
            print(printable(sentence), file=sys.stderr)

    def detail(self, sentence: str) -> None:
        """Say what only ``-v`` asks for."""
        if self.verbose:
            print(printable(sentence), file=sys.stderr)

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
                sys.stderr.write(f"{_CLEAR}{label} [{bar:<30}] {done}/{total}")
                sys.stderr.flush()

        try:
            yield update
        finally:
            if shown > start:
                sys.stderr.write(_CLEAR)
                sys.stderr.flush()
