"""An excerpt of a long trace: the beginnings of turns that are drawn evenly.

In: a trace. Out: a shorter one, whose turns are whole passes from their first step on, so that all that
takes a trace takes it too.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.trace import Trace
from tracekit.trace.columns import to_numpy
from tracekit.trace.passes import pass_starts
from tracekit.trace.rows import Rows, SpanRows, WithColumn
from tracekit.trace.schema import DECODE, LAYERS_FILE, ROUTING_FILE, STEPS_FILE

# With fewer turns a learned predictor has little to learn from, with more each of them is short.
_LEAST_TURNS = 10


@dataclass(frozen=True, eq=False)
class Excerpt:
    """A part of a trace.

    Attributes
    ----------
    trace : Trace
    n_turns : int
    most_tokens : int
        Passes of a turn are taken until so many of its tokens are decoded.
    """

    trace: Trace
    n_turns: int
    most_tokens: int


def excerpt(trace: Trace, n_tokens: int) -> Excerpt:
    """Return an excerpt of about `n_tokens` decoded tokens, fewer if turns have few.

    Parameters
    ----------
    trace : Trace
        With decoded tokens.
    n_tokens : int
        Prompts of the turns that are drawn are taken whole, and come on top.
    """
    passes, steps = trace.passes, trace.steps(["turn", "pass", "phase"])
    most = max(1, -(-n_tokens // _LEAST_TURNS))
    starts = pass_starts(steps["pass"])
    ends = np.append(starts[1:], len(steps["pass"]))
    is_decode = steps["phase"][starts] == DECODE
    decoded = np.where(is_decode, ends - starts, 0)
    turns, first = np.unique(steps["turn"][starts], return_index=True)
    last = np.append(first[1:], len(starts))
    # A turn ends with the pass that brings the tokens to `most`.
    before = np.cumsum(decoded) - decoded
    stop = np.array(
        [
            begin + int(np.searchsorted(before[begin:end] - before[begin], most))
            for begin, end in zip(first.tolist(), last.tolist(), strict=True)
        ]
    )
    taken = np.array(
        [decoded[begin:end].sum() for begin, end in zip(first.tolist(), stop.tolist(), strict=True)]
    )
    n_turns = min(len(turns), max(_LEAST_TURNS, int(n_tokens / max(1.0, taken.mean()))))
    drawn = np.arange(n_turns) * len(turns) // n_turns
    rows, of_steps = [], []
    row_ends = np.append(passes.first_row[1:], passes.n_rows)
    for turn in drawn.tolist():
        begin, end = int(first[turn]), int(stop[turn])
        of_steps.append((int(starts[begin]), int(ends[end - 1])))
        numbers = steps["pass"][starts[[begin, end - 1]]]
        low = int(np.searchsorted(passes.number, numbers[0]))
        high = int(np.searchsorted(passes.number, numbers[1], side="right"))
        if low < high:
            rows.append((int(passes.first_row[low]), int(row_ends[high - 1])))
    found = Trace(
        trace.facts,
        trace.rows(LAYERS_FILE),
        _numbered(SpanRows(trace.rows(ROUTING_FILE), rows)),
        _numbered(SpanRows(trace.rows(STEPS_FILE), of_steps)),
        warnings=trace.warnings,
        name=trace.name,
    )
    found.validate()
    return Excerpt(found, n_turns, most)


def _numbered(rows: Rows) -> Rows:
    """Return rows whose passes and turns count up from 0 as those of a trace do."""
    table = rows.read(["pass", "turn"])
    for name in ("pass", "turn"):
        numbers = np.unique(to_numpy(table[name], 0), return_inverse=True)[1]
        rows = WithColumn(rows, rows.schema.field(name), numbers.astype(np.int32))
    return rows
