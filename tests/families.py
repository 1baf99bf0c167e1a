"""Families of tests: of many that check the same thing, the fast suite runs a few."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

# numba compiles each of these for seconds, and few people replay them. The fast suite leaves all of
# their tests to the slow one, so that it compiles none; a policy that is new is in the fast suite.
RARE_POLICIES = frozenset(
    {"arc", "fewer-experts", "heat", "layer-lfu", "lfu-da", "lrfu", "pin", "s3-fifo"}
)

# Parameters of a fixture: what the fast suite leaves out, and what the slow one does.
LEFT_OUT = [
    pytest.param(RARE_POLICIES, id="few policies"),
    pytest.param(frozenset(), id="all policies", marks=pytest.mark.slow),
]


def slow_where(values: Iterable, is_slow: Callable[..., bool]) -> list:
    """Return `values` for ``parametrize``; the slow suite alone runs those that `is_slow` accepts."""
    return [_slow(value) if is_slow(value) else value for value in values]


def slow_unless(values: Iterable, *fast: object) -> list:
    """Return `values` for ``parametrize``; the fast suite runs those in `fast`, and they are there."""
    listed = list(values)
    missing = [value for value in fast if value not in listed]
    assert not missing, f"The fast suite wants {missing}, which are not among {listed}."
    return slow_where(listed, lambda value: value not in fast)


def slow_if_rare(policies: Iterable) -> list:
    """Return names of policies, or tuples that begin with one; the rare ones are for the slow suite."""
    return slow_where(
        policies, lambda each: (each[0] if isinstance(each, tuple) else each) in RARE_POLICIES
    )


def few_and_all(policies: Iterable[str]) -> list:
    """Return two lists of policies for one test: without the rare ones, and all in the slow suite."""
    listed = list(policies)
    few = [name for name in listed if name not in RARE_POLICIES]
    return [
        pytest.param(few, id="few policies"),
        pytest.param(listed, id="all policies", marks=pytest.mark.slow),
    ]


@contextmanager
def ranking_without(names: Iterable[str]) -> Iterator[None]:
    """Let advice and closures rank all policies but `names`; no disagreement is put down to these."""
    from tracekit.analysis import closure
    from tracekit.replaying import reasons

    with pytest.MonkeyPatch.context() as patch:
        for module in (closure, reasons):
            kept = [cls for cls in module.POLICIES if cls.name not in names]
            patch.setattr(module, "POLICIES", kept)
        yield


def _slow(value: object):
    """Mark a value, or the values of several parameters."""
    values = value if isinstance(value, tuple) else (value,)
    return pytest.param(*values, marks=pytest.mark.slow)
