"""Families of tests: of many that check the same thing, the fast suite runs a few."""

from collections.abc import Callable, Iterable

import pytest


def slow_where(values: Iterable, is_slow: Callable[..., bool]) -> list:
    """Return `values` for ``parametrize``; the slow suite alone runs those that `is_slow` accepts."""
    return [_slow(value) if is_slow(value) else value for value in values]


def slow_unless(values: Iterable, *fast: object) -> list:
    """Return `values` for ``parametrize``; the fast suite runs those in `fast`, and they are there."""
    listed = list(values)
    missing = [value for value in fast if value not in listed]
    assert not missing, f"The fast suite wants {missing}, which are not among {listed}."
    return slow_where(listed, lambda value: value not in fast)


def _slow(value: object):
    """Mark a value, or the values of several parameters."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)
