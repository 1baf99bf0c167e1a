"""Reading the next item on a thread while the last one is worked on.

In: an iterable. Out: the same items in the same order.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")


def ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield `items`, each of which is made while the one before it is used.

    An error of an item is raised where the item would have been.
    """
    end: Any = object()
    iterator = iter(items)
    with ThreadPoolExecutor(1, "tracekit-reader") as executor:
        following = executor.submit(next, iterator, end)
        while (item := following.result()) is not end:
            following = executor.submit(next, iterator, end)
            yield item
