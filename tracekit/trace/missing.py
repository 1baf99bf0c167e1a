"""Rows that a trace lacks although it can be read: a run with holes replays to other figures.

In: the places of the routings and of the steps, and the layers that have experts. Out: one sentence
that names what is missing, or none. What cannot be read at all `order` has refused before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tracekit.trace.checks import Arrays
from tracekit.trace.facts import TraceFacts
from tracekit.trace.passes import pass_starts
from tracekit.trace.schema import DECODE, PREFILL

# The note of a trace that says why a turn does not begin at step 0.
LATE = "begins_late"


def missing_rows(
    name: str,
    facts: TraceFacts,
    rows: Arrays,
    steps: Arrays,
    kept: Callable[[], np.ndarray],
    layers: Arrays,
) -> str | None:
    """Return the sentence about what the trace `name` lacks, None if nothing is seen to be missing.

    In one pass all layers but the last hold the same steps; passes and turns count up from 0; a
    turn begins at step 0, or where the turn before it ended, or the note ``begins_late`` of the
    facts says why not. A prompt that was cancelled may end anywhere.

    Parameters
    ----------
    name : str
    facts : TraceFacts
    rows : mapping
        `pass`, `phase`, `step`, `layer` of the routings, each [n], in (pass, layer, step) order.
    steps : mapping
        `turn`, `pass`, `phase`, `step` of the steps, each [m], in (pass, step) order.
    kept : callable
        Returns which steps stayed, bool [m].
    layers : mapping
        `layer` and `expert_bytes` (-1: null) of the layers.
    """
    if not len(steps["pass"]):
        return None
    found = [*_passes(steps), *_turns(steps), *_routings(facts.complete, rows, steps, kept)]
    if LATE not in facts.notes:
        found += _late_turns(steps, kept)
    if facts.complete:
        found += _layers(rows, steps, layers)
    if not found:
        return None
    return (
        f"{name} lacks rows, and figures are of what is left: {', '.join(found)}; "
        "copy or record it again."
    )


def _passes(steps: Arrays) -> Iterator[str]:
    first = int(steps["pass"][0])
    if first:
        yield f"{_numbers('pass', 'passes', 0, first - 1)} missing"


def _turns(steps: Arrays) -> Iterator[str]:
    turns = steps["turn"][pass_starts(steps["turn"])].astype(np.int64)
    before = np.concatenate(([-1], turns[:-1]))
    for gap in np.flatnonzero(turns - before > 1)[:1]:
        yield f"{_numbers('turn', 'turns', int(before[gap]) + 1, int(turns[gap]) - 1)} missing"


def _numbers(one: str, more: str, first: int, last: int) -> str:
    return f"{one} {first} is" if first == last else f"{more} {first} to {last} are"


def _late_turns(steps: Arrays, kept: Callable[[], np.ndarray]) -> Iterator[str]:
    """Name the turns that begin neither at step 0 nor, with a prompt, where the one before ended."""
    starts = pass_starts(steps["turn"])
    first = steps["step"][starts]
    late = np.flatnonzero(first > 0)
    if not len(late):
        return
    stayed = kept()
    found = []
    for turn in late.tolist():
        if turn and steps["phase"][starts[turn]] == PREFILL:
            before = slice(starts[turn - 1], starts[turn])
            if first[turn] == steps["step"][before][stayed[before]].max(initial=-1) + 1:
                continue
        found.append(turn)
    if found:
        turn = found[0]
        more = f" ({len(found) - 1} more turns begin late)" if len(found) > 1 else ""
        yield f"turn {steps['turn'][starts[turn]]} begins at step {first[turn]}, not at 0{more}"


def _layers(rows: Arrays, steps: Arrays, layers: Arrays) -> Iterator[str]:
    """Name the layers that have experts and no routing.

    Once a token was decoded, layers above the last that routed are those of a draft head, which did
    not run. Without one the last layer may have no routing, and any other must.
    """
    routed = np.flatnonzero(np.bincount(rows["layer"]))
    sized = layers["layer"][layers["expert_bytes"] >= 0]
    has_decoded = (steps["phase"] == DECODE).any()
    below = (routed if has_decoded else sized).max(initial=-1)
    lacking = np.setdiff1d(sized[sized < below], routed)
    if len(lacking) and len(routed):
        more = f" ({len(lacking) - 1} more have none)" if len(lacking) > 1 else ""
        yield f"layer {lacking[0]} has experts and no routing{more}"


@dataclass(frozen=True)
class _Prompts:
    """The prefill passes: their first rows and counts among the steps and among the routings."""

    step_start: np.ndarray
    n_steps: np.ndarray
    row_start: np.ndarray
    n_rows: np.ndarray


def _prompts(rows: Arrays, steps: Arrays) -> _Prompts:
    step_start = pass_starts(steps["pass"])
    n_steps = np.diff(np.append(step_start, len(steps["pass"])))
    prefill = steps["phase"][step_start] == PREFILL
    step_start, n_steps = step_start[prefill], n_steps[prefill]
    passes = steps["pass"][step_start]
    row_start = np.searchsorted(rows["pass"], passes, side="left")
    row_stop = np.searchsorted(rows["pass"], passes, side="right")
    return _Prompts(step_start, n_steps, row_start, row_stop - row_start)


def _routings(
    complete: bool, rows: Arrays, steps: Arrays, kept: Callable[[], np.ndarray]
) -> Iterator[str]:
    """Name the first routing that a layer of a prompt lacks, and how many there are.

    The last layer may route fewer tokens than the others, or none: llama.cpp drops those whose
    output nobody wants.
    """
    routed = np.flatnonzero(np.bincount(rows["layer"]))
    prompts = _prompts(rows, steps)
    if len(routed) < 2 or not len(prompts.step_start):
        return
    before_last = np.append(0, np.cumsum(rows["layer"] != routed[-1]))
    present = before_last[prompts.row_start + prompts.n_rows] - before_last[prompts.row_start]
    lacking = prompts.n_steps * (len(routed) - 1) - present
    if not complete and steps["phase"][-1] == PREFILL:
        lacking[-1] = 0  # of what was cut off it was said that it is
    stayed = kept() if lacking.any() else np.empty(0, np.bool_)
    total, first = 0, None
    for number in np.flatnonzero(lacking).tolist():
        start, n_steps = int(prompts.step_start[number]), int(prompts.n_steps[number])
        of_pass = slice(
            int(prompts.row_start[number]),
            int(prompts.row_start[number] + prompts.n_rows[number]),
        )
        place = np.searchsorted(routed, rows["layer"][of_pass]) * n_steps
        place += rows["step"][of_pass] - steps["step"][start]
        # A cancelled prompt has routings up to where it was cancelled.
        is_cancelled = not stayed[start : start + n_steps].any()
        if is_cancelled and (place == np.arange(len(place))).all():
            continue
        total += int(lacking[number])
        if first is None:
            expected = np.arange(n_steps * (len(routed) - 1))
            layer, step = divmod(int(np.setdiff1d(expected, place)[0]), n_steps)
            first = (
                f"step {steps['step'][start] + step} of turn {steps['turn'][start]} at layer "
                f"{routed[layer]}"
            )
    if total == 1:
        yield f"the prompt's routing of {first} is missing"
    elif total:
        yield f"{total} routings of prompts are missing, the first that of {first}"
