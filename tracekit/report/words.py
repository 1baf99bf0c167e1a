"""How the report writes figures: percent and MiB with their unit, which no line break may part."""

from tracekit import figures
from tracekit.figures import NONE, UNBROKEN, known


def percent(rate: float | None) -> str:
    """Write a fraction as percent; only a whole is written 100.0 %."""
    return f"{figures.percent(rate, 1)}{UNBROKEN}%" if known(rate) else NONE


def mib(size: float | None) -> str:
    """Write bytes in MiB: whole ones from 100 on, three digits below."""
    return figures.in_mib(size, UNBROKEN)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Write ``1 token``, ``1,000 tokens``."""
    return figures.counted(number, noun, plural, grouped=True)
