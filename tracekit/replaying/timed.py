"""Rows that carry times: what each gains over LRU, and what a reader of the times must know.

In: rows with times, and the fit. Out: rows, sentences.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.figures import joined
from tracekit.replaying.labels import labels_of
from tracekit.replaying.rows import Row
from tracekit.timing import Fit
from tracekit.timing.refusals import UNSEEN
from tracekit.timing.spread import RunSpread

# Rows named with one sentence.
_MOST_NAMED = 4


def against_lru(rows: Sequence[Row], spread: RunSpread) -> list[Row]:
    """Return rows with what each gains over LRU at the same budget, where that was replayed.

    Parameters
    ----------
    rows : sequence of Row
    spread : RunSpread
        A difference of less than twice this is not measurable.
    """
    of_lru = {
        row.budget: row.time.typical_ms
        for row in rows
        if row.policy == "lru" and row.time is not None
    }

    def compared(row: Row) -> Row:
        base, time = of_lru.get(row.budget), row.time
        if time is None or base is None or row.policy == "lru":
            return row
        best = time.typical_fastest_ms if time.typical_ms is None else time.typical_ms
        if best is None:
            return row
        worst = time.typical_slowest_ms or best
        largest = max(abs(float(np.log(base / each))) for each in (best, worst))
        time = replace(
            time, tok_s_above_lru=base / best - 1, is_measurable=largest >= 2 * spread.sd_log
        )
        return replace(row, time=time)

    return [compared(row) for row in rows]


def time_notes(rows: Sequence[Row], fit: Fit) -> list[str]:
    """Return the sentences that a reader of the times needs: each refusal once, with its rows."""
    refused: dict[str, dict[str, None]] = {}
    for row, label in zip(rows, labels_of(rows), strict=True):
        for sentence in row.time.refusals if row.time is not None else ():
            name = f"{label} at {row.cache_mib:.6g} MiB"
            refused.setdefault(sentence, {})[name] = None
    found = []
    for sentence, names in refused.items():
        if len(names) == len(rows):
            found.append(f"Time: {sentence}")
            continue
        named = list(names)
        more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
        found.append(f"Time of {joined([*named[:_MOST_NAMED], *more])}: {sentence}")
    return [*found, *fit.notes, _memory(fit)]


def _memory(fit: Fit) -> str:
    lacks = [
        flag
        for flag, value in (
            ("--ram-mib", fit.facts.ram_mib),
            ("--mem-floor-mib", fit.facts.mem_floor_mib),
        )
        if value is None
    ]
    if not lacks:
        return UNSEEN
    return (
        f"{UNSEEN} With {joined(lacks)} a cache is refused that would leave under 15 % of the "
        "device's memory free."
    )
