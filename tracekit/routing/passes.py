"""The routings of a trace in blocks of whole passes.

In: a trace. Out: columns, block by block, each block a few passes long. A pass is never cut, so the
longest pass has to fit into memory, with the columns that are asked for.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from tracekit.trace import Trace

Columns = dict[str, np.ndarray]


def whole_passes(trace: Trace, columns: Sequence[str]) -> Iterator[Columns]:
    """Yield the columns `columns` and `pass` of the routings, in blocks of whole passes.

    Yields
    ------
    dict of str to numpy.ndarray
        As of `Trace.iter_routing`.
    """
    names = list(dict.fromkeys(("pass", *columns)))
    held: list[Columns] = []  # of the last pass, which may go on
    for block in trace.iter_routing(names):
        passes = block["pass"]
        end = int(np.searchsorted(passes, passes[-1], side="left"))
        if held and (end > 0 or passes[0] != held[0]["pass"][0]):
            yield _joined([*held, _rows(block, 0, end)])
            held = []
        elif end > 0:
            yield _rows(block, 0, end)
        held.append(_rows(block, end, len(passes)))
    if held:
        yield _joined(held)


def _rows(columns: Columns, start: int, stop: int) -> Columns:
    return {name: values[start:stop] for name, values in columns.items()}


def _joined(pieces: list[Columns]) -> Columns:
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
