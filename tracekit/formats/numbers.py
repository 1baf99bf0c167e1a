"""Lists of numbers as JSON has them, as arrays.

In: nested lists of any content. Out: an array of whole numbers, or a sentence.
"""

from typing import Any

import numpy as np

from tracekit.trace import TraceError


def integers(values: Any, where: str, axes: int) -> np.ndarray:
    """Return nested lists of whole numbers as an array.

    Parameters
    ----------
    values : list
    where : str
        Where they stand, for a sentence: ``run.jsonl, line 3, experts``.
    axes : int
        How deep the lists are nested.

    Returns
    -------
    int array with so many axes

    Raises
    ------
    TraceError
        They are nested otherwise, not of equal length, or hold something else.
    """
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError, TypeError):  # of unequal length
        array = np.empty(0, object)
    if array.ndim != axes or (array.dtype.kind not in "iu" and array.size):
        what = "a whole number" if axes == 0 else "lists of " * (axes - 1) + "whole numbers"
        equal = ", all of one length" if axes > 1 else ""
        raise TraceError(f"{where}: {what}{equal} should stand there; correct or record it again.")
    return array.astype(np.int64) if array.dtype.kind not in "iu" else array
