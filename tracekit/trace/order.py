"""Checks of the order of a trace's rows: nothing missing, nothing doubled, files that agree.

In: the places (turn, pass, phase, step, layer) of rows whose values are checked. Out: nothing, or a
`TraceError` with place and remedy.
"""

import numpy as np

from tracekit.trace.checks import Arrays, Where, first_true
from tracekit.trace.errors import TraceError
from tracekit.trace.passes import pass_starts
from tracekit.trace.schema import DECODE, PREFILL

_NO_GAP = (
    "the steps of a turn follow each other without a gap: rows are missing or doubled, record it "
    "again."
)


def check_routing(where: Where, rows: Arrays, complete: bool) -> None:
    """Check that the routings stand in (pass, layer, step) order and that none is missing.

    Parameters
    ----------
    where : Where
    rows : mapping
        `turn`, `pass`, `phase`, `step`, `layer`, each [n].
    complete : bool
        An incomplete trace may lack the last layers of its last pass.

    Raises
    ------
    TraceError
    """
    if len(rows["pass"]) == 0:
        return
    _check_order(where, rows)
    starts = pass_starts(rows["pass"])
    _check_decode_passes(where, rows, starts, complete)
    first = np.minimum.reduceat(rows["step"], starts)
    last = np.maximum.reduceat(rows["step"], starts)
    turn, phase = rows["turn"][starts], rows["phase"][starts]
    same_turn = turn[1:] == turn[:-1]
    # The routings of a prefill may begin at a later step: where only the last layer has experts,
    # llama.cpp gathers the output token before it. `check_steps` finds a step that is missing there.
    ahead = first[1:].astype(np.int64) - last[:-1]
    gap = first_true(same_turn & np.where(phase[1:] == DECODE, ahead != 1, ahead < 1))
    if gap is not None:
        raise TraceError(
            f"{where.at(starts[gap + 1])}: turn {turn[gap]} goes from step {last[gap]} to step "
            f"{first[gap + 1]}; {_NO_GAP}"
        )


def _check_order(where: Where, rows: Arrays) -> None:
    step = np.diff(rows["step"].astype(np.int64))
    layer = np.diff(rows["layer"].astype(np.int32))
    turn = np.diff(rows["turn"].astype(np.int64))
    passes = np.diff(rows["pass"].astype(np.int64))
    same_pass = passes == 0
    for name, change in (("pass", passes), ("turn", turn)):
        row = first_true(change < 0)
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
        place = ", ".join(f"{name} {rows[name][row + 1]}" for name in ("turn", "step", "layer"))
        is_repeat = layer[row] == 0 and step[row] == 0
        fault = (
            "stands twice: remove one"
            if is_repeat
            else "is out of (pass, layer, step) order: sort the rows"
        )
        raise TraceError(f"{where.at(row + 1)}: the routing of {place} {fault}.")


def _check_decode_passes(where: Where, rows: Arrays, starts: np.ndarray, complete: bool) -> None:
    counts = np.diff(np.append(starts, len(rows["pass"])))
    moe_layers = np.flatnonzero(np.bincount(rows["layer"]))
    lacks_layer = (rows["phase"][starts] == DECODE) & (counts < len(moe_layers))
    if not complete:
        lacks_layer[-1] = False
    number = first_true(lacks_layer)
    if number is None:
        return
    start = int(starts[number])
    missing = np.setdiff1d(moe_layers, rows["layer"][start : start + counts[number]])[0]
    raise TraceError(
        f"{where.at(start)}: the decode pass of turn {rows['turn'][start]}, step "
        f"{rows['step'][start]} lacks layer {missing}, which other passes route; "
        "rows are missing: record it again."
    )


def check_steps(where: Where, steps: Arrays, rows: Arrays) -> None:
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
            f"step {step[row + 1]}; {_NO_GAP}"
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


def _check_agreement(where: Where, steps: Arrays, rows: Arrays) -> None:
    starts, step_starts = pass_starts(rows["pass"]), pass_starts(steps["pass"])
    passes, step_passes = rows["pass"][starts], steps["pass"][step_starts]
    at = np.searchsorted(step_passes, passes)
    is_known = at < len(step_passes)
    is_known[is_known] = step_passes[at[is_known]] == passes[is_known]
    unknown = first_true(~is_known)
    if unknown is not None:
        raise TraceError(
            f"{where.file} lacks pass {passes[unknown]}, which the routings have; "
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
        other = first_true(differs)
        if other is not None:
            raise TraceError(
                f"{where.at(step_starts[at[other]])}: pass {passes[other]} has another turn, phase "
                "or steps here than in the routings; the files are of different recordings: "
                "copy the trace again."
            )
    unrouted = np.setdiff1d(step_passes[steps["phase"][step_starts] != PREFILL], passes)
    if len(unrouted):
        raise TraceError(
            f"{where.file} has decode pass {unrouted[0]}, for which no routing is recorded; "
            "rows of the routings are missing: copy or record the trace again."
        )
