"""What follows from the passes of a trace: where its rows may be cut, and which steps stayed.

In: the place of each row. Out: row numbers, or which rows. This module reads and writes nothing.
"""

import numpy as np

from tracekit.trace.schema import DECODE

# A row group holds a few hundred tokens, and less where gate inputs make them heavy: it is what a
# reader or a writer needs in memory at once.
GROUP_TOKENS = 256
GROUP_BYTES = 16 << 20
# A large file has about so many groups, larger ones, until they have that many bytes.
MOST_GROUPS = 64
# A row group takes some time whatever it holds: those of light rows, as of steps, are not smaller.
LEAST_GROUP_BYTES = 1 << 19
# Rows with gate inputs or embeddings are read a few hundred tokens at a time: their groups stay small.
HEAVY_ROW_BYTES = 1024


def pass_starts(passes: np.ndarray) -> np.ndarray:
    """Return the first row of each pass, int64 [P]."""
    if len(passes) == 0:
        return np.empty(0, np.int64)
    return np.concatenate(([0], np.flatnonzero(np.diff(passes)) + 1))


def kept_steps(turns: np.ndarray, passes: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return which steps no later pass of their turn takes back, bool [n].

    A pass that begins at a step takes back what earlier passes of the turn had there and after it:
    drafted tokens that were rejected, or a prompt that was cancelled and begun anew.

    Parameters
    ----------
    turns, passes, steps : [n]
        In (pass, step) order.
    """
    starts = pass_starts(passes)
    if len(starts) == 0:
        return np.empty(0, np.bool_)
    turn = np.unique(turns, return_inverse=True)[1].astype(np.int64) << 32
    # First steps of later turns are larger than any of this turn, so that they take nothing back.
    first = turn[starts] + steps[starts]
    first_of_later = np.append(np.minimum.accumulate(first[::-1])[::-1][1:], np.iinfo(np.int64).max)
    counts = np.diff(np.append(starts, len(passes)))
    kept: np.ndarray = turn + steps < np.repeat(first_of_later, counts)
    return kept


def by_token(passes: np.ndarray, steps: np.ndarray) -> np.ndarray | None:
    """Return the order that puts the layers of each token together, int64 [n].

    Parameters
    ----------
    passes, steps : [n]
        Of routings in (pass, layer, step) order.

    Returns
    -------
    int64 [n] or None
        Rows in (pass, step, layer) order; None if they stand so already, as where every pass has
        one token.
    """
    if ((np.diff(passes) != 0) | (np.diff(steps) == 0)).all():
        return None
    return np.lexsort((steps, passes))


def group_rows(n_rows: int, rows_of_token: int, bytes_of_row: int) -> int:
    """Return how many rows a row group has.

    Parameters
    ----------
    n_rows : int
        Of the file.
    rows_of_token : int
        A token has about a row for each layer.
    bytes_of_row : int
        Before encoding.
    """
    most = GROUP_TOKENS * rows_of_token
    if bytes_of_row < HEAVY_ROW_BYTES:
        most = max(most, n_rows // MOST_GROUPS, LEAST_GROUP_BYTES // bytes_of_row)
    return max(1, min(GROUP_BYTES // bytes_of_row, most))


def group_ends(starts: np.ndarray, phases: np.ndarray, n_rows: int, most: int) -> list[int]:
    """Return where row groups end: after whole passes, unless one prefill pass is too large.

    Parameters
    ----------
    starts, phases : [P]
        The first row and the phase of each pass.
    n_rows : int
        Of all passes.
    most : int
        Rows of a group, see `group_rows`; a decode pass may have more.

    Returns
    -------
    list of int
        Ascending; the last is n_rows.
    """
    bounds = np.append(starts, n_rows)
    ends: list[int] = []
    start = 0
    while start < n_rows:
        stop = min(start + most, n_rows)
        if stop < n_rows:
            at = int(np.searchsorted(starts, stop, side="right")) - 1
            if bounds[at] > start:
                stop = int(bounds[at])
            elif phases[at] == DECODE:
                stop = int(bounds[at + 1])
        ends.append(stop)
        start = stop
    return ends
