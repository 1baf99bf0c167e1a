"""Ctrl-C while llama.cpp runs: it calls back into Python, where an exception would be lost in C."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Held:
    """How often Ctrl-C was pressed, and how often that is only noted.

    Attributes
    ----------
    count : int
    patience : int
    """

    def __init__(self, patience: int = 0):
        self.count = 0
        self.patience = patience

    @property
    def pressing(self) -> bool:
        """Whether what runs is to be broken off."""
        return self.count > self.patience


_current: Held | None = None


@contextmanager
def held(patience: int = 0) -> Iterator[Held]:
    """Note Ctrl-C instead of raising it; the calls from C look whether to break off.

    At the end of the block one too many is raised as ``KeyboardInterrupt``; one more, and Python's
    own handler is back. Inside another `held`, that one's patience counts. Outside the main thread
    Python raises nothing there is to hold, and an ignored Ctrl-C stays ignored.

    Parameters
    ----------
    patience : int
        How many are only noted.
    """
    global _current
    noted = Held(patience)
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield noted
        return
    if _current is not None:
        yield _current
        return

    def note(_signal: int, _frame: object) -> None:
        noted.count += 1
        if noted.count > patience + 1:
            signal.signal(signal.SIGINT, previous)

    try:
        _current = noted
        signal.signal(signal.SIGINT, note)
        yield noted
    finally:
        _current = None  # first: once Python's handler is back, it may raise between any two lines
        signal.signal(signal.SIGINT, previous)
    if noted.pressing:
        raise KeyboardInterrupt
