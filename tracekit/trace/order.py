"""Checks of the order of a trace's rows: nothing missing, nothing doubled, files that agree."""

import numpy as np

from tracekit.trace.checks import Columns, Where, first_true
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import TraceFacts
from tracekit.trace.schema import DECODE, PREFILL


def check_routing(where: Where, rows: Columns, facts: TraceFacts) -> None:
    """Check that the routings stand in (pass, layer, step) order and that none is missing.

    Parameters
    ----------
    where : Where
    rows : mapping
        `turn`, `pass`, `phase`, `step`, `layer`, each [n].
    facts : TraceFacts
        An incomplete trace may lack the last layers of its last pass.

    Raises
    ------
    TraceError
    """
    if len(rows["pass"]) == 0:
        return
    _check_order(where, rows)
    starts = pass_starts(rows["pass"])
    _check_decode_passes(where, rows, starts, facts.complete)
    first = np.minimum.reduceat(rows["step"], starts)
    last = np.maximum.reduceat(rows["step"], starts)
    turn, phase = rows["turn"][starts], rows["phase"][starts]
    same_turn = turn[1:] == turn[:-1]
    # A prefill may begin later than it should: where only the last layer routes, llama.cpp
    # gathers the output token before it. The steps tell whether one is missing.
    ahead = first[1:].astype(np.int64) - last[:-1]
    bad = first_true(same_turn & np.where(phase[1:] == DECODE, ahead != 1, ahead < 1))
    if bad is not None:
        raise TraceError(
            f"{where.at(starts[bad + 1])}: turn {turn[bad]} goes from step {last[bad]} to step "
            f"{first[bad + 1]}; the steps of a turn follow each other without a gap: "
            "rows are missing or doubled, record it again."
        )


def pass_starts(passes: np.ndarray) -> np.ndarray:
    """Return the first row of each pass, int64 [P]."""
    return np.concatenate(([0], np.flatnonzero(np.diff(passes)) + 1))


def _check_order(where: Where, rows: Columns) -> None:
    step = np.diff(rows["step"].astype(np.int64))
    layer = np.diff(rows["layer"].astype(np.int32))
    turn = np.diff(rows["turn"].astype(np.int64))
    passes = np.diff(rows["pass"].astype(np.int64))
    same_pass = passes == 0
    for name, delta in (("pass", passes), ("turn", turn)):
        row = first_true(delta < 0)
        if row is not None:
            raise TraceError(
                f"{where.at(row + 1)}, column {name}: {rows[name][row + 1]} follows "
                f"{rows[name][row]}; rows stand in (pass, layer, step) order: sort them."
            )
    for name in ("turn", "phase"):
        row = first_true(same_pass & (rows[name][1:] != rows[name][:-1]))
        if row is not None:
            raise TraceError(
                f"{where.at(row + 1)}, column {name}: pass {rows['pass'][row]} has {name} "
                f"{rows[name][row]} and {rows[name][row + 1]}; a pass belongs to one {name}: "
                "number the passes anew."
            )
    decode = rows["phase"][1:] == DECODE
    row = first_true(same_pass & decode & (step != 0))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}, column step: decode pass {rows['pass'][row]} has steps "
            f"{rows['step'][row]} and {rows['step'][row + 1]}; every decoded token is a pass of "
            "its own: number the passes anew."
        )
    row = first_true(same_pass & ((layer < 0) | ((layer == 0) & (step <= 0))))
    if row is not None:
        here = f"turn {rows['turn'][row + 1]}, step {rows['step'][row + 1]}"
        here += f", layer {rows['layer'][row + 1]}"
        twice = layer[row] == 0 and step[row] == 0
        what = (
            "stands twice: remove one"
            if twice
            else "is out of (pass, layer, step) order: sort the rows"
        )
        raise TraceError(f"{where.at(row + 1)}: the routing of {here} {what}.")


def _check_decode_passes(where: Where, rows: Columns, starts: np.ndarray, complete: bool) -> None:
    counts = np.diff(np.append(starts, len(rows["pass"])))
    routed = np.flatnonzero(np.bincount(rows["layer"]))
    lacking = (rows["phase"][starts] == DECODE) & (counts < len(routed))
    if not complete:
        lacking[-1] = False
    bad = first_true(lacking)
    if bad is None:
        return
    start = int(starts[bad])
    has = rows["layer"][start : start + counts[bad]]
    missing = np.setdiff1d(routed, has)[0]
    raise TraceError(
        f"{where.at(start)}: the decode pass of turn {rows['turn'][start]}, step "
        f"{rows['step'][start]} lacks layer {missing}, which other passes route; "
        "rows are missing: record it again."
    )


def check_steps(where: Where, steps: Columns, rows: Columns) -> None:
    """Check that the steps of each turn follow each other and agree with the routings.

    Parameters
    ----------
    where : Where
    steps, rows : mapping
        `turn`, `pass`, `phase`, `step` of the steps and of the routings.

    Raises
    ------
    TraceError
    """
    turn, passes, step = (steps[c].astype(np.int64) for c in ("turn", "pass", "step"))
    same_turn = np.diff(turn) == 0
    row = first_true(same_turn & (np.diff(step) != 1))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}, column step: turn {turn[row]} goes from step {step[row]} to "
            f"step {step[row + 1]}; the steps of a turn follow each other without a gap: "
            "rows are missing or doubled, record it again."
        )
    row = first_true((np.diff(turn) < 0) | (np.diff(passes) < 0) | (np.diff(passes) > 1))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}: turn {turn[row + 1]}, pass {passes[row + 1]} follows turn "
            f"{turn[row]}, pass {passes[row]}; passes count up by one: rows are missing."
        )
    same_pass = np.diff(passes) == 0
    decode = steps["phase"] == DECODE
    row = first_true(same_pass & (~same_turn | decode[1:] | (decode[1:] != decode[:-1])))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}: pass {passes[row]} holds more than one turn, phase or decoded "
            "token; number the passes anew."
        )
    _check_agreement(where, steps, rows)


def _check_agreement(where: Where, steps: Columns, rows: Columns) -> None:
    starts = pass_starts(rows["pass"]) if len(rows["pass"]) else np.empty(0, np.int64)
    step_starts = pass_starts(steps["pass"]) if len(steps["pass"]) else np.empty(0, np.int64)
    known = steps["pass"][step_starts]
    passes = rows["pass"][starts]
    at = np.searchsorted(known, passes)
    found = at < len(known)
    found[found] = known[at[found]] == passes[found]
    bad = first_true(~found)
    if bad is not None:
        raise TraceError(
            f"{where.file} lacks pass {passes[bad]}, which the routings have; "
            "the files are of different recordings or one was cut: copy the trace again."
        )
    if len(starts):
        step_ends = np.append(step_starts[1:], len(steps["pass"])) - 1
        first = np.minimum.reduceat(rows["step"], starts)
        last = np.maximum.reduceat(rows["step"], starts)
        differs = (
            (steps["turn"][step_starts[at]] != rows["turn"][starts])
            | (steps["phase"][step_starts[at]] != rows["phase"][starts])
            | (steps["step"][step_starts[at]] > first)
            | (steps["step"][step_ends[at]] < last)
        )
        bad = first_true(differs)
        if bad is not None:
            raise TraceError(
                f"{where.at(step_starts[at[bad]])}: pass {passes[bad]} has another turn, phase or "
                "steps here than in the routings; the files are of different recordings: "
                "copy the trace again."
            )
    unrouted = np.setdiff1d(known[steps["phase"][step_starts] != PREFILL], passes)
    if len(unrouted):
        raise TraceError(
            f"{where.file} has decode pass {unrouted[0]}, of which no routing is recorded; "
            "rows of the routings are missing: copy or record the trace again."
        )
