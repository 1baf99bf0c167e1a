"""Work on several threads, that Ctrl-C ends at once."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def on_threads(
    work: Callable[[Item], Result], items: Sequence[Item], jobs: int
) -> Iterator[tuple[int, Result]]:
    """Call `work` on each of `items` on up to `jobs` threads.

    An executor of the standard library waits for its threads when the interpreter exits; a long
    replay would then outlive the Ctrl-C. These are daemons: they end with the main thread.

    Yields
    ------
    (int, Result)
        Index and result of each item, as they get done. What `work` raises is raised here.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[int, Result | None, BaseException | None]] = queue.SimpleQueue()
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            try:
                index = todo.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, work(items[index]), None))
            except BaseException as error:  # handed to the caller, whatever it is
                done.put((index, None, error))

    for index in range(len(items)):
        todo.put(index)
    for _ in range(min(jobs, len(items))):
        threading.Thread(target=run, daemon=True).start()
    try:
        for _ in items:
            index, result, error = done.get()
            if error is not None:
                raise error
            yield index, result
    finally:
        stop.set()
