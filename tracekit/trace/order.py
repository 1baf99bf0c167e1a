"""Checks of the order of a trace's rows: nothing missing, nothing doubled, files that agree.

In: the places (turn, pass, phase, step, layer) of rows whose values are checked. Out: nothing, or a
`TraceError` with place and remedy.
"""

from dataclasses import replace

import numpy as np

from tracekit.trace.checks import Arrays, Where, first_true
from tracekit.trace.errors import TraceError
from tracekit.trace.pass_table import PassTable, distinct
from tracekit.trace.passes import pass_starts
from tracekit.trace.schema import DECODE, PREFILL

_NO_GAP = (
    "the steps of a turn follow each other without a gap: rows are missing or doubled, record it "
    "again."
)

# What a foreign file may lack, whose pass has not all layers.
LACKS_ROWS = (
    "rows are missing, or prompts are mixed and no column names the prompt of a row: add what is "
    "missing, or record it again"
)


def check_routing(
    where: Where, rows: Arrays, complete: bool, layers: np.ndarray | None = None
) -> None:
    """Check that the routings stand in (pass, layer, step) order and that none is missing.

    Parameters
    ----------
    where : Where
    rows : mapping
        `turn`, `pass`, `phase`, `step`, `layer`, each [n].
    complete : bool
        An incomplete trace may lack the last layers of its last pass.
    layers : [L], optional
        The layers that routed, ascending; by default those of `rows`.

    Raises
    ------
    TraceError
    """
    if len(rows["pass"]) == 0:
        return
    _check_order(where, rows)
    starts = pass_starts(rows["pass"])
    layers = distinct(rows["layer"]) if layers is None else layers
    _check_decode_passes(where, rows, starts, complete, layers)
    first = np.minimum.reduceat(rows["step"], starts)
    last = np.maximum.reduceat(rows["step"], starts)
    # The routings of a prefill may begin at a later step: where only the last layer has experts,
    # llama.cpp gathers the output token before it. `check_steps` finds a step that is missing there.
    is_exact = rows["phase"][starts] == DECODE
    _check_no_gap(where, rows["turn"][starts], first, last, starts, is_exact)


def _check_no_gap(
    where: Where,
    turn: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    starts: np.ndarray,
    is_exact: np.ndarray,
) -> None:
    """Check that no pass of a turn begins more than one step after the pass before it.

    Parameters
    ----------
    where : Where
    turn, first, last, starts : [P]
        Turn, first step, last step and first row of each pass. What a later pass takes back was
        the end of the pass before it, so the pass before it is the one to begin after.
    is_exact : bool [P]
        Whether the first step of a pass is known; otherwise it may be an earlier one.
    """
    ahead = first[1:].astype(np.int64) - last[:-1]
    gap = first_true((turn[1:] == turn[:-1]) & is_exact[1:] & (ahead > 1))
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


def _check_decode_passes(
    where: Where, rows: Arrays, starts: np.ndarray, complete: bool, moe_layers: np.ndarray
) -> None:
    """Check that every decode pass routes each of its tokens at every MoE layer."""
    n_rows = len(rows["pass"])
    counts = np.diff(np.append(starts, n_rows))
    # The tokens of a pass are those of its first layer; each layer has as many, in the same order.
    tokens = np.add.reduceat(rows["layer"] == np.repeat(rows["layer"][starts], counts), starts)
    place = np.arange(n_rows) - np.repeat(starts, counts)
    tokens_of_row, start_of_row = np.repeat(tokens, counts), np.repeat(starts, counts)
    layer_place = np.minimum(place // tokens_of_row, len(moe_layers) - 1)
    is_out = (rows["layer"] != moe_layers[layer_place]) | (
        rows["step"] != rows["step"][start_of_row + place % tokens_of_row]
    )
    is_wrong = np.logical_or.reduceat(is_out, starts) | (counts != tokens * len(moe_layers))
    is_wrong &= rows["phase"][starts] == DECODE
    if not complete:
        is_wrong[-1] = False
    number = first_true(is_wrong)
    if number is None:
        return
    start, stop = int(starts[number]), int(starts[number] + counts[number])
    steps, layers = np.unique(rows["step"][start:stop]), moe_layers.tolist()
    present = set(
        zip(rows["layer"][start:stop].tolist(), rows["step"][start:stop].tolist(), strict=True)
    )
    layer, step = next((n, s) for n in layers for s in steps.tolist() if (n, s) not in present)
    mend = "rows are missing: record it again" if where.locate is None else LACKS_ROWS
    raise TraceError(
        f"{where.at(start)}: the decode pass of turn {rows['turn'][start]}, step {step} lacks layer "
        f"{layer}, which other passes route; {mend}."
    )


def check_steps(where: Where, steps: Arrays, routed: PassTable) -> None:
    """Check that the steps of each turn follow each other and agree with the routings.

    Parameters
    ----------
    where : Where
    steps : mapping
        `turn`, `pass`, `phase`, `step` of the steps.
    routed : PassTable
        The passes of the routings.

    Raises
    ------
    TraceError
    """
    turn, passes, step = (steps[c].astype(np.int64) for c in ("turn", "pass", "step"))
    row = first_true((np.diff(turn) < 0) | (np.diff(passes) < 0) | (np.diff(passes) > 1))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}: turn {turn[row + 1]}, pass {passes[row + 1]} follows turn "
            f"{turn[row]}, pass {passes[row]}; passes count up by one: rows are missing."
        )
    same_pass = np.diff(passes) == 0
    decode = steps["phase"] == DECODE
    row = first_true(same_pass & ((np.diff(turn) != 0) | (decode[1:] != decode[:-1])))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}: pass {passes[row]} has more than one turn or phase; number the "
            "passes anew."
        )
    row = first_true(same_pass & (np.diff(step) != 1))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}, column step: turn {turn[row]} goes from step {step[row]} to "
            f"step {step[row + 1]} within pass {passes[row]}; the steps of a pass follow each "
            "other: rows are missing or doubled, record it again."
        )
    starts = pass_starts(passes)
    if len(starts):
        ends = np.append(starts[1:], len(step)) - 1
        is_exact = np.ones(len(starts), np.bool_)
        _check_no_gap(where, turn[starts], step[starts], step[ends], starts, is_exact)
    _check_agreement(where, steps, routed)


def _check_agreement(where: Where, steps: Arrays, routed: PassTable) -> None:
    step_starts, passes = pass_starts(steps["pass"]), routed.number
    step_passes = steps["pass"][step_starts]
    at = np.searchsorted(step_passes, passes)
    is_known = at < len(step_passes)
    is_known[is_known] = step_passes[at[is_known]] == passes[is_known]
    unknown = first_true(~is_known)
    if unknown is not None:
        raise TraceError(
            f"{where.file} lacks pass {passes[unknown]}, which the routings have; "
            "the files are of different recordings or one was cut: copy the trace again."
        )
    if len(routed):
        step_ends = np.append(step_starts[1:], len(steps["pass"])) - 1
        differs = (
            (steps["turn"][step_starts[at]] != routed.turn)
            | (steps["phase"][step_starts[at]] != routed.phase)
            | (steps["step"][step_starts[at]] > routed.first_step)
            | (steps["step"][step_ends[at]] < routed.last_step)
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


class OrderSoFar:
    """Checks the order of rows that come piece by piece: each piece after the last pass before it."""

    def __init__(self) -> None:
        self._last_rows: dict[str, np.ndarray] = {}
        self._last_steps: dict[str, np.ndarray] = {}

    def check(
        self,
        where_rows: Where,
        rows: Arrays,
        where_steps: Where,
        steps: Arrays,
        complete: bool = True,
    ) -> None:
        """Check the next piece, which consists of whole passes.

        Parameters
        ----------
        where_rows, where_steps : Where
            Of the first row of the piece.
        rows, steps : mapping
            Places of the routings and of the steps, as for `check_routing` and `check_steps`.
        complete : bool
            As for `check_routing`.

        Raises
        ------
        TraceError
        """
        where_rows, all_rows = _after(self._last_rows, where_rows, rows)
        where_steps, all_steps = _after(self._last_steps, where_steps, steps)
        check_routing(where_rows, all_rows, complete)
        check_steps(where_steps, all_steps, PassTable.of(all_rows))
        self._last_rows, self._last_steps = _last_pass(all_rows), _last_pass(all_steps)


def _last_pass(rows: Arrays) -> dict[str, np.ndarray]:
    if not len(rows["pass"]):
        return {}
    first = int(np.searchsorted(rows["pass"], rows["pass"][-1], side="left"))
    return {name: values[first:].copy() for name, values in rows.items()}


def _after(last: Arrays, where: Where, rows: Arrays) -> tuple[Where, Arrays]:
    """Return rows with those of the last pass before them, and what names them."""
    if not last:
        return where, rows
    joined = {name: np.concatenate((last[name], values)) for name, values in rows.items()}
    return replace(where, first_row=where.first_row - len(last["pass"])), joined
