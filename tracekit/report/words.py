"""How the report writes figures: percent and MiB with their unit, ``-`` for what is not known."""

from tracekit.predictors.scoring import report
from tracekit.table import MIB, NONE, known

UNBROKEN = "\N{NO-BREAK SPACE}"  # between a figure and its unit


def percent(rate: float | None) -> str:
    """Write a fraction as percent; only a whole is written 100.0 %."""
    return f"{report.percent(rate)}{UNBROKEN}%" if known(rate) else NONE


def points(difference: float | None) -> str:
    """Write a difference of fractions in points, with its sign."""
    if not known(difference):
        return NONE
    return f"{100 * difference:+.1f}".replace("-0.0", "0.0").replace("+0.0", "0.0")


def mib(size: float | None) -> str:
    """Write bytes in MiB: whole ones from 100 on, three digits below."""
    if not known(size):
        return NONE
    value = size / MIB
    return (f"{value:,.0f}" if value >= 100 else f"{value:.3g}") + f"{UNBROKEN}MiB"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Write ``1 token``, ``1,000 tokens``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def listed(names: list[str]) -> str:
    """Write ``a``, ``a and b``, ``a, b and c``."""
    return " and ".join([*([", ".join(names[:-1])] if names[:-1] else []), *names[-1:]])
