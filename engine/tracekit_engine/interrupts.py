"""Ctrl-C while llama.cpp runs: an exception raised in a callback from C would be lost in C.

So `counted` counts Ctrl-C while a block runs, the callbacks ask whether to stop, and
KeyboardInterrupt is raised at the end of the block.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class CtrlC:
    """How often Ctrl-C was pressed.

    Attributes
    ----------
    count : int
        Presses so far.
    tolerated : int
        Presses that are only counted.
    """

    def __init__(self, tolerated: int = 0):
        self.count = 0
        self.tolerated = tolerated

    @property
    def must_stop(self) -> bool:
        """Whether there were more presses than are tolerated."""
        return self.count > self.tolerated


_current: CtrlC | None = None


@contextmanager
def counted(tolerated: int = 0) -> Iterator[CtrlC]:
    """Count Ctrl-C instead of raising KeyboardInterrupt.

    If there were more presses than are tolerated, KeyboardInterrupt is raised at the end of the
    block. One press more than that puts the previous handler back, so that the press after it has
    its usual effect.
    A block inside another `counted` shares the outer one's count. Outside the main thread there is
    nothing to count, because Python raises KeyboardInterrupt in the main thread only. A Ctrl-C that
    the process ignores stays ignored.

    Parameters
    ----------
    tolerated : int
        Presses that are only counted.
    """
    global _current
    ctrl_c = CtrlC(tolerated)
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield ctrl_c
        return
    if _current is not None:
        yield _current
        return

    def count(_signal: int, _frame: object) -> None:
        ctrl_c.count += 1
        if ctrl_c.count > tolerated + 1:
            signal.signal(signal.SIGINT, previous)

    try:
        _current = ctrl_c
        signal.signal(signal.SIGINT, count)
        yield ctrl_c
    finally:
        _current = None  # first: once Python's handler is back, it may raise between any two lines
        signal.signal(signal.SIGINT, previous)
    if ctrl_c.must_stop:
        raise KeyboardInterrupt
