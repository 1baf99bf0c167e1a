"""The next item is made while the last one is used; nothing else changes."""

import threading

import pytest

from tracekit.ahead import ahead, each_ahead


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


def test_work_on_the_next_items_is_done_meanwhile_in_their_order():
    begun = [threading.Event() for _ in range(4)]
    second_may_end = threading.Event()

    def work(number: int) -> int:
        begun[number].set()
        if number == 0:
            assert begun[1].wait(10)  # both are worked on at once
        if number == 1:
            assert second_may_end.wait(10)
        return 10 * number

    made = each_ahead(work, range(4))
    assert next(made) == 0
    assert begun[2].wait(10)  # the second is not done yet
    second_may_end.set()
    assert list(made) == [10, 20, 30]
    assert list(each_ahead(work, [])) == []


def test_an_error_of_work_or_of_an_item_comes_where_its_result_would_have_been():
    def refuse_two(number: int) -> int:
        if number == 2:
            raise ValueError("the third")
        return number

    made = each_ahead(refuse_two, range(9))
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(ValueError, match="the third"):
        next(made)

    def items():
        yield 0
        yield 1
        raise KeyError("no third")

    made = each_ahead(refuse_two, items())
    assert [next(made), next(made)] == [0, 1]
    with pytest.raises(KeyError, match="no third"):
        next(made)


def test_what_nobody_reads_any_more_is_not_waited_for():
    """The garbage collector may close it where waiting for a thread would never end."""
    may_end, ended = threading.Event(), threading.Event()

    def second_waits(number: int) -> int:
        if number:
            may_end.wait(10)
            ended.set()
        return number

    for read in (ahead(map(second_waits, range(3))), each_ahead(second_waits, range(3))):
        assert next(read) == 0  # the second is made meanwhile
        read.close()
        assert not ended.is_set()
    may_end.set()
    assert ended.wait(10)
