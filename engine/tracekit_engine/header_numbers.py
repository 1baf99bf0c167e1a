"""Which numbers the header of a model may give: each finite, and in the range of its key.

Keys and their numbers go in; a refusal comes out. A number out of its range makes llama.cpp loop for
ever, ask for absurd memory, or compute the same values for every token. What the numbers of one file
must be to each other is not checked here.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tracekit.trace.build import on_one_line
from tracekit.trace.errors import TracekitError


class _Range(NamedTuple):
    least: float
    most: float

    def __str__(self) -> str:
        return f"from {self.least:g} to {self.most:,.12g}"


# By the last words of a key. The limits lie far beyond what models have.
_RANGES = {
    "context_length": _Range(1, (1 << 32) - 1),
    "embedding_length": _Range(1, 1 << 24),
    "attention.sliding_window": _Range(0, 1 << 24),
    "rope.dimension_count": _Range(1, 1 << 16),
    "rope.dimension_count_swa": _Range(1, 1 << 16),
    "epsilon": _Range(0, 1),
    "freq_base": _Range(1e-6, 1e15),
    "freq_base_swa": _Range(1e-6, 1e15),
    "rope.scaling.factor": _Range(0, 1e6),
    "rope.scaling.attn_factor": _Range(0, 1e6),
    "expert_weights_scale": _Range(0, 1e6),
}
_ANY = _Range(-math.inf, math.inf)


def check(path: Path, numbers: Iterable[tuple[str, int | float]]) -> None:
    """Refuse a number that is not finite or not in its range.

    Parameters
    ----------
    path : Path
        The file, for the sentence.
    numbers : iterable of (str, number)
        Keys with their numbers; an array gives its key several times.

    Raises
    ------
    TracekitError
    """
    for key, number in numbers:
        shown = f"{number:,}" if isinstance(number, int) else str(np.float32(number))
        if not math.isfinite(number):
            raise TracekitError(
                f"{path}: {on_one_line(key)} is {shown}; it must be a finite number."
            )
        allowed = next((rule for end, rule in _RANGES.items() if key.endswith(end)), _ANY)
        if not allowed.least <= number <= allowed.most:
            raise TracekitError(f"{path}: {on_one_line(key)} is {shown}; it must be {allowed}.")
