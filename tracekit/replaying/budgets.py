"""From what a user says of cache sizes to bytes."""

import math
from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np

from tracekit.arguments import as_list
from tracekit.figures import MIB
from tracekit.policies.model import Model
from tracekit.trace.build import shown
from tracekit.trace.errors import MissingDataError, UsageError

DEFAULT_FRACTIONS = (0.1, 0.25, 0.5)
_MOST_BYTES = 2**62

Sizes = float | Sequence[float] | None


def budgets_in_bytes(
    model: Model,
    recorded: int | None,
    cache_mib: Sizes = None,
    cache_fraction: Sizes = None,
    cache_bytes: int | Sequence[int] | None = None,
    cache_slots: int | Sequence[int] | None = None,
    name: str = "the trace",
) -> np.ndarray:
    """Return the cache budgets that were asked for, each once, in the order given.

    Parameters
    ----------
    model : Model
        Its expert bank is what fractions are of.
    recorded : int or None
        The budget the engine ran with, in bytes: the default. Without one, 10, 25 and 50 % of the
        bank.
    cache_mib : float or sequence of float, optional
        Sizes in MiB, 0 or more.
    cache_fraction : float or sequence of float, optional
        Fractions of the expert bank, from 0 to 1.
    cache_bytes : int or sequence of int, optional
        Sizes in bytes, 0 or more.
    cache_slots : int or sequence of int, optional
        Numbers of experts of every MoE layer, from 0 to all. They are given alone: what a policy
        with a share for each layer does with a budget in bytes is another thing.
    name : str, optional
        What sentences call the trace.

    Returns
    -------
    int64 [C]

    Raises
    ------
    UsageError
        A size is negative, not finite or not a number; there are both sizes and slots, or more slots
        than experts.
    MissingDataError
        A size is given in MiB or bytes, and those of the experts are not known.
    """
    others = (cache_mib, cache_fraction, cache_bytes)
    if cache_slots is not None:
        if any(size is not None for size in others):
            raise UsageError(
                "Cache budgets are given in slots (experts of every layer) or as sizes, not as both; "
                "replay twice."
            )
        slots = [_checked_slots(n, model.n_expert) for n in as_list(cache_slots)]
        return _each_once([n * int(model.expert_bytes.sum()) for n in slots])
    if not model.sized:
        if cache_mib is not None or cache_bytes is not None:
            raise MissingDataError(
                f"A cache has no size in MiB, since {name} does not say how many bytes an expert "
                "has; give --cache-fraction or --cache-slots, or the sizes: `tracekit import` takes --model PATH or "
                "--expert-mib M."
            )
        recorded = None
    sizes = [
        _checked_size("cache_mib", size, _MOST_BYTES / MIB) * MIB for size in _given(cache_mib)
    ]
    for fraction in _given(cache_fraction):
        sizes.append(_checked_size("cache_fraction", fraction, 1) * model.bank_bytes)
    sizes += [checked_bytes(size) for size in _given(cache_bytes)]
    if all(size is None for size in others):
        default = [fraction * model.bank_bytes for fraction in DEFAULT_FRACTIONS]
        sizes = default if recorded is None else [recorded]
    return _each_once([round(size) for size in sizes])


def _each_once(sizes: Sequence[int]) -> np.ndarray:
    """Return `sizes` without repetitions, int64 [C].

    Raises
    ------
    UsageError
        There is none.
    """
    if not sizes:
        raise UsageError("There is no cache budget to replay at; give at least one.")
    return np.array(list(dict.fromkeys(sizes)), np.int64)


def _checked_slots(slots: object, n_expert: int) -> int:
    if (
        not isinstance(slots, Integral)
        or isinstance(slots, bool)
        or not 0 <= int(slots) <= n_expert
    ):
        raise UsageError(
            f"cache_slots takes whole numbers of experts of a layer, from 0 to all {n_expert}, not "
            f"{shown(slots)}."
        )
    return int(slots)


def checked_bytes(size: float) -> int:
    """Return `size`, a budget in bytes, as an int.

    Raises
    ------
    UsageError
        `size` is not a whole number, or not from 0 to 2^62.
    """
    if not isinstance(size, Integral):
        raise UsageError(f"cache_bytes takes whole numbers of bytes, not {shown(size)}.")
    return int(_checked_size("cache_bytes", size, _MOST_BYTES))


def _given(sizes: Sizes) -> list[float]:
    return [] if sizes is None else as_list(sizes)


def _checked_size(name: str, size: float, most: float) -> float:
    """Return `size`, which argument `name` was given.

    Raises
    ------
    UsageError
        `size` is not a number from 0 to `most`.
    """
    if not isinstance(size, Real) or not math.isfinite(size) or not 0 <= size <= most:
        raise UsageError(f"{name} takes numbers from 0 to {most:g}, not {shown(size)}.")
    return size
