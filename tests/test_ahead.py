"""The next item is made while the last one is used; nothing else changes."""

import threading

import pytest

from tracekit.ahead import ahead


def test_items_and_errors_come_in_their_order():
    def items():
        yield 1
        yield 2
        raise ValueError("the third")

    read = ahead(items())
    assert [next(read), next(read)] == [1, 2]
    with pytest.raises(ValueError, match="the third"):
        next(read)
    assert list(ahead([])) == []


def test_the_next_item_is_made_meanwhile_and_no_more():
    made = [threading.Event() for _ in range(3)]

    def items():
        for number, event in enumerate(made):
            event.set()
            yield number

    read = ahead(items())
    assert next(read) == 0
    assert made[1].wait(10)
    assert not made[2].wait(0.02)
    read.close()
    assert not made[2].is_set()
