"""Reading the next items on threads while the last one is worked on.

In: an iterable. Out: the same items, or what is made of them, in the same order.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield `items`, each of which is made while the one before it is used.

    An error of an item is raised where the item would have been.
    """
    end: Any = object()
    iterator = iter(items)
    with _threads(1, "tracekit-reader") as executor:
        following = executor.submit(next, iterator, end)
        while (item := following.result()) is not end:
            following = executor.submit(next, iterator, end)
            yield item


def each_ahead(
    work: Callable[[Item], Made], items: Iterable[Item], threads: int = 2
) -> Iterator[Made]:
    """Yield ``work(item)`` of each item; that of the next `threads` items is done meanwhile.

    The items are taken by the caller's thread. An error of an item, or of the work on it, is raised
    where its result would have been.
    """
    iterator = iter(items)
    waiting: deque[Future[Made]] = deque()
    failed: Exception | None = None
    with _threads(threads, "tracekit-worker") as executor:
        while True:
            try:
                item = next(iterator)
            except StopIteration:
                break
            except Exception as error:  # it comes after the results before it
                failed = error
                break
            waiting.append(executor.submit(work, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        for each in waiting:
            yield each.result()
    if failed is not None:
        raise failed


@contextmanager
def _threads(number: int, name: str) -> Iterator[ThreadPoolExecutor]:
    """Give threads that end by themselves; what they have begun is not waited for.

    The garbage collector may close a generator that nobody uses any more, at any moment; so also while
    a thread starts, when CPython 3.11 holds a lock that waiting for another thread needs.
    """
    executor = ThreadPoolExecutor(number, name)
    try:
        yield executor
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
