"""How the report writes figures: percent and MiB with their unit, which no line break may part."""

from tracekit.figures import NONE, UNBROKEN, in_mib
from tracekit.figures import counted as counted_of
from tracekit.figures import percent as percent_of


def percent(rate: float | None) -> str:
    """Write a fraction as percent; only a whole is written 100.0 %."""
    text = percent_of(rate, 1)
    return text if text == NONE else f"{text}{UNBROKEN}%"


def mib(size: float | None) -> str:
    """Write bytes in MiB: whole ones from 100 on, three digits below."""
    return in_mib(size, UNBROKEN)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Write ``1 token``, ``1,000 tokens``."""
    return counted_of(number, noun, plural, grouped=True)
