"""Work on several threads, which Ctrl-C ends at once."""

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TypeVar

from tracekit.arguments import whole

Item = TypeVar("Item")
Result = TypeVar("Result")


def threads_of(jobs: int | None) -> int:
    """Return how many threads the argument `jobs` asks for; errors are those of `replay`."""
    return os.cpu_count() or 1 if jobs is None else whole("jobs", jobs, 1, "a number of threads")


def on_threads(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[int, Result]]:
    """Call `work` on each of `items` on up to `jobs` threads.

    An executor of the standard library waits for its threads when the interpreter exits; a long
    replay would then outlive the Ctrl-C. These threads are daemons: they end with the main thread.

    Yields
    ------
    (int, Result)
        Index and result of each item, as they get done. What `work` raises is raised here.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Future[Result]]] = queue.SimpleQueue()
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            outcome: Future[Result] = Future()
            try:
                outcome.set_result(work(items[index]))
            except BaseException as error:  # the caller gets it, whatever it is
                outcome.set_exception(error)
            done.put((index, outcome))

    for index in range(len(items)):
        todo.put(index)
    for _ in range(min(jobs, len(items))):
        threading.Thread(target=run, daemon=True).start()
    try:
        for _ in items:
            index, outcome = done.get()
            yield index, outcome.result()
    finally:
        stop.set()
