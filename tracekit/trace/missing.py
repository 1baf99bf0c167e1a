"""Rows that a trace lacks although it can be read: a run with holes replays to other figures.

In: the places of the routings and of the steps, and the layers that have experts. Out: one sentence
that names what is missing, or none. What cannot be read at all `order` has refused before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tracekit.trace.checks import Arrays
from tracekit.trace.facts import TraceFacts
from tracekit.trace.pass_table import PassTable
from tracekit.trace.passes import pass_starts
from tracekit.trace.schema import DECODE, PREFILL

# The note of a trace that says why a turn does not begin at step 0.
LATE = "begins_late"


def missing_rows(
    name: str,
    facts: TraceFacts,
    routed: PassTable,
    rows: Callable[[int, int], Arrays],
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
    routed : PassTable
        The passes of the routings.
    rows : callable
        Returns `step` and `layer` of the routings from one row to before another.
    steps : mapping
        `turn`, `pass`, `phase`, `step` of the steps, each [m], in (pass, step) order.
    kept : callable
        Returns which steps stayed, bool [m].
    layers : mapping
        `layer` and `expert_bytes` (-1: null) of the layers.
    """
    if not len(steps["pass"]):
        return None
    found = [*_passes(steps), *_turns(steps), *_routings(facts.complete, routed, rows, steps, kept)]
    if LATE not in facts.notes:
        found += _late_turns(steps, kept)
    if facts.complete:
        found += _layers(routed.layers, steps, layers)
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


def _layers(routed: np.ndarray, steps: Arrays, layers: Arrays) -> Iterator[str]:
    """Name the layers that have experts and no routing.

    Once a token was decoded, layers above the last that routed are those of a draft head, which did
    not run. Without one the last layer may have no routing, and any other must.
    """
    sized = layers["layer"][layers["expert_bytes"] >= 0]
    has_decoded = (steps["phase"] == DECODE).any()
    below = (routed if has_decoded else sized).max(initial=-1)
    lacking = np.setdiff1d(sized[sized < below], routed)
    if len(lacking) and len(routed):
        more = f" ({len(lacking) - 1} more have none)" if len(lacking) > 1 else ""
        yield f"layer {lacking[0]} has experts and no routing{more}"


@dataclass(frozen=True)
class _Prompts:
    """The prefill passes: their first steps and counts, and their places among all passes."""

    step_start: np.ndarray
    n_steps: np.ndarray
    row_start: np.ndarray
    n_rows: np.ndarray
    n_before_last: np.ndarray  # routings of layers before the last that routed

    @classmethod
    def of(cls, routed: PassTable, steps: Arrays) -> "_Prompts":
        step_start = pass_starts(steps["pass"])
        n_steps = np.diff(np.append(step_start, len(steps["pass"])))
        prefill = steps["phase"][step_start] == PREFILL
        step_start, n_steps = step_start[prefill], n_steps[prefill]
        passes = steps["pass"][step_start]
        at = np.searchsorted(routed.number, passes)
        is_routed = at < len(routed)
        is_routed[is_routed] = routed.number[at[is_routed]] == passes[is_routed]
        found = at[is_routed]
        row_start, n_rows, before = (np.zeros(len(passes), np.int64) for _ in range(3))
        row_start[is_routed] = routed.first_row[found]
        n_rows[is_routed] = routed.n_of_pass[found]
        in_last = np.where(routed.last_layer == routed.layers[-1], routed.n_in_last_layer, 0)
        before[is_routed] = n_rows[is_routed] - in_last[found]
        return cls(step_start, n_steps, row_start, n_rows, before)


def _routings(
    complete: bool,
    routed: PassTable,
    rows: Callable[[int, int], Arrays],
    steps: Arrays,
    kept: Callable[[], np.ndarray],
) -> Iterator[str]:
    """Name the first routing that a layer of a prompt lacks, and how many there are.

    The last layer may route fewer tokens than the others, or none: llama.cpp drops those whose
    output nobody wants.
    """
    layers = routed.layers
    if len(layers) < 2:
        return
    prompts = _Prompts.of(routed, steps)
    if not len(prompts.step_start):
        return
    lacking = prompts.n_steps * (len(layers) - 1) - prompts.n_before_last
    if not complete and steps["phase"][-1] == PREFILL:
        lacking[-1] = 0  # of what was cut off it was said that it is
    stayed = kept() if lacking.any() else np.empty(0, np.bool_)
    total, first = 0, None
    for number in np.flatnonzero(lacking).tolist():
        start, n_steps = int(prompts.step_start[number]), int(prompts.n_steps[number])
        row = int(prompts.row_start[number])
        of_pass = rows(row, row + int(prompts.n_rows[number]))
        place = np.searchsorted(layers, of_pass["layer"]) * n_steps
        place += of_pass["step"] - steps["step"][start]
        # A cancelled prompt has routings up to where it was cancelled.
        is_cancelled = not stayed[start : start + n_steps].any()
        if is_cancelled and (place == np.arange(len(place))).all():
            continue
        total += int(lacking[number])
        if first is None:
            expected = np.arange(n_steps * (len(layers) - 1))
            layer, step = divmod(int(np.setdiff1d(expected, place)[0]), n_steps)
            first = (
                f"step {steps['step'][start] + step} of turn {steps['turn'][start]} at layer "
                f"{layers[layer]}"
            )
    if total == 1:
        yield f"the prompt's routing of {first} is missing"
    elif total:
        yield f"{total} routings of prompts are missing, the first that of {first}"
