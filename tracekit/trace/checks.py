"""Checks of a trace's values: vectorised, each failure one sentence that names place and mend."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.trace.columns import elements, valid_mask
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts, TraceFacts
from tracekit.trace.schema import DECODE, PREFETCHED, PREFILL

# Rows compared at a time: keeps the temporaries of a check small.
CHUNK = 1 << 18
# No expert of any model comes near a TiB, and sums of sizes up to it stay within 64 bits.
MAX_EXPERT_BYTES = 1 << 40

Locate = Callable[[int, int], str]
Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Where:
    """Names the place of a row: ``run.trace/routing.parquet, row 12``, or a line of a CSV file."""

    file: str
    first_row: int = 0
    locate: Locate | None = None

    def at(self, row: int, slot: int = 0) -> str:
        """Return the words for a row (counted from `first_row`), and a slot of it."""
        if self.locate is not None:
            return self.locate(self.first_row + int(row), int(slot))
        return f"{self.file}, row {self.first_row + int(row)}"


def _first(bad: np.ndarray) -> int | None:
    """Return the index of the first True, or None."""
    if bad.size == 0:
        return None
    index = int(bad.argmax())
    return index if bad.reshape(-1)[index] else None


# ---- single columns ---------------------------------------------------------------------------

NEVER_NULL = frozenset(("turn", "pass", "phase", "step", "layer", "experts"))


def check_nulls(where: Where, name: str, column: pa.ChunkedArray, valid: np.ndarray | None) -> None:
    """Check that a column which must not be null is not; `valid` as in `check_values`.

    Raises
    ------
    TraceError
    """
    if name not in NEVER_NULL:
        return
    row = None if valid is None else _first(~valid)
    if row is not None:
        raise TraceError(f"{where.at(row)}, column {name}: it is null; write its value.")
    if name == "experts" and any(elements(chunk).null_count for chunk in column.chunks):
        known = np.concatenate([valid_mask(elements(chunk)) for chunk in column.chunks])
        row, slot = divmod(int((~known).argmax()), column.type.list_size)
        raise TraceError(
            f"{where.at(row, slot)}, column expert, slot {slot}: it is null; write the expert."
        )


def check_values(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    """Check the values of one column of the routings, as far as they can be judged alone.

    Parameters
    ----------
    where : Where
        Of the first row of `values`.
    name : str
    values : numpy.ndarray
        [n] or [n, width], nulls replaced as `tracekit.trace.columns.NULLS` says.
    valid : bool [n] or None
        Which rows are not null; None: all of them.
    facts : TraceFacts

    Raises
    ------
    TraceError
    """
    check = _VALUE_CHECKS.get(name)
    if check is None:
        return
    for start in range(0, len(values), CHUNK):
        part = values[start : start + CHUNK]
        part_valid = None if valid is None else valid[start : start + CHUNK]
        part_where = Where(where.file, where.first_row + start, where.locate)
        check(part_where, name, part, part_valid, facts)


def _check_not_negative(where, name, values, valid, facts):
    row = _first(values < 0)
    if row is not None:
        raise TraceError(
            f"{where.at(row)}, column {name}: {values[row]} is negative; "
            f"a {name} counts from 0: correct or record it again."
        )


def _check_phase(where, name, values, valid, facts):
    row = _first(values > DECODE)
    if row is not None:
        raise TraceError(
            f"{where.at(row)}, column phase: {values[row]} is neither 0 (prefill) nor 1 (decode)."
        )


def _check_layer(where, name, values, valid, facts):
    n_layer = facts.model.n_layer
    row = _first((values < 0) | (values >= n_layer))
    if row is not None:
        raise TraceError(
            f"{where.at(row)}, column layer: {values[row]} is no layer of a model with "
            f"{n_layer} of them (0 to {n_layer - 1}); correct the row or the model's n_layer."
        )


def _check_experts(where, name, values, valid, facts):
    n_expert = facts.model.n_expert
    k = values.shape[1]
    at = _first(values >= n_expert)
    if at is not None:
        row, slot = divmod(at, k)
        raise TraceError(
            f"{where.at(row, slot)}, column expert, slot {slot}: expert {values[row, slot]} is "
            f"not below the model's n_expert = {n_expert}; correct the row or n_expert."
        )
    slots = np.ascontiguousarray(values.T)
    twice = np.zeros(len(values), dtype=bool)
    for later in range(1, k):
        for earlier in range(later):
            twice |= slots[later] == slots[earlier]
    row = _first(twice)
    if row is not None:
        chosen = values[row].tolist()
        slot = next(s for s in range(k) if chosen[s] in chosen[:s])
        raise TraceError(
            f"{where.at(row, slot)}, column expert: expert {chosen[slot]} stands twice in one "
            f"routing (slots {chosen.index(chosen[slot])} and {slot}); a token selects "
            "distinct experts: correct or record it again."
        )


def _check_weights(where, name, values, valid, facts):
    at = _first((values < 0) | np.isinf(values))
    if at is not None:
        row, slot = divmod(at, values.shape[1])
        raise TraceError(
            f"{where.at(row, slot)}, column weight, slot {slot}: {values[row, slot]} is no "
            "routing weight; it is a finite number from 0 up, or null (nan in a CSV) if unknown."
        )


def _check_codes(where, name, values, valid, facts):
    largest, meaning = {
        "residency": (PREFETCHED, "0 (miss), 1 (hit) or 2 (prefetched)"),
        "dropped": (1, "0 or 1"),
    }[name]
    at = _first((values > largest) & (values != 255))
    if at is not None:
        row, slot = divmod(at, values.shape[1])
        raise TraceError(
            f"{where.at(row, slot)}, column {name}, slot {slot}: {values[row, slot]} is not "
            f"{meaning}, nor null."
        )


def _check_finite(where, name, values, valid, facts):
    # A row's sum is finite only if its values are (or overflow, which the second look rules out).
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = ~np.isfinite(values.sum(axis=1, dtype=np.float32))
    if valid is not None:
        suspect &= valid
    for row in np.flatnonzero(suspect):
        at = _first(~np.isfinite(values[row]))
        if at is not None:
            raise TraceError(
                f"{where.at(row)}, column {name}: value {at} is {values[row, at]}, not a finite "
                "number; the recording is damaged or the model computed it: record it again."
            )


_VALUE_CHECKS = {
    "turn": _check_not_negative,
    "pass": _check_not_negative,
    "step": _check_not_negative,
    "phase": _check_phase,
    "layer": _check_layer,
    "experts": _check_experts,
    "weights": _check_weights,
    "residency": _check_codes,
    "dropped": _check_codes,
    "logits": _check_finite,
    "gate_input": _check_finite,
}


# ---- the order of the rows --------------------------------------------------------------------


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
    bad = _first(same_turn & np.where(phase[1:] == DECODE, ahead != 1, ahead < 1))
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
        row = _first(delta < 0)
        if row is not None:
            raise TraceError(
                f"{where.at(row + 1)}, column {name}: {rows[name][row + 1]} follows "
                f"{rows[name][row]}; rows stand in (pass, layer, step) order: sort them."
            )
    for name in ("turn", "phase"):
        row = _first(same_pass & (rows[name][1:] != rows[name][:-1]))
        if row is not None:
            raise TraceError(
                f"{where.at(row + 1)}, column {name}: pass {rows['pass'][row]} has {name} "
                f"{rows[name][row]} and {rows[name][row + 1]}; a pass belongs to one {name}: "
                "number the passes anew."
            )
    decode = rows["phase"][1:] == DECODE
    row = _first(same_pass & decode & (step != 0))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}, column step: decode pass {rows['pass'][row]} has steps "
            f"{rows['step'][row]} and {rows['step'][row + 1]}; every decoded token is a pass of "
            "its own: number the passes anew."
        )
    row = _first(same_pass & ((layer < 0) | ((layer == 0) & (step <= 0))))
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
    bad = _first(lacking)
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
    for name in ("turn", "pass", "step"):
        _check_not_negative(where, name, steps[name], None, None)
    _check_phase(where, "phase", steps["phase"], None, None)
    turn, passes, step = (steps[c].astype(np.int64) for c in ("turn", "pass", "step"))
    same_turn = np.diff(turn) == 0
    row = _first(same_turn & (np.diff(step) != 1))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}, column step: turn {turn[row]} goes from step {step[row]} to "
            f"step {step[row + 1]}; the steps of a turn follow each other without a gap: "
            "rows are missing or doubled, record it again."
        )
    row = _first((np.diff(turn) < 0) | (np.diff(passes) < 0) | (np.diff(passes) > 1))
    if row is not None:
        raise TraceError(
            f"{where.at(row + 1)}: turn {turn[row + 1]}, pass {passes[row + 1]} follows turn "
            f"{turn[row]}, pass {passes[row]}; passes count up by one: rows are missing."
        )
    same_pass = np.diff(passes) == 0
    decode = steps["phase"] == DECODE
    row = _first(same_pass & (~same_turn | decode[1:] | (decode[1:] != decode[:-1])))
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
    bad = _first(~found)
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
        bad = _first(differs)
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


# ---- layers -----------------------------------------------------------------------------------


def check_layers(where: Where, layers: Columns, facts: TraceFacts) -> None:
    """Check layer numbers and sizes; null sizes (-1) may stand where no replay needs them.

    Parameters
    ----------
    where : Where
    layers : mapping
        `layer`, `expert_bytes`, `dense_bytes`, each [n].
    facts : TraceFacts

    Raises
    ------
    TraceError
    """
    _check_layer(where, "layer", layers["layer"], None, facts)
    numbers, first = np.unique(layers["layer"], return_index=True)
    if len(numbers) < len(layers["layer"]):
        row = np.setdiff1d(np.arange(len(layers["layer"])), first)[0]
        raise TraceError(
            f"{where.at(row)}, column layer: layer {layers['layer'][row]} stands twice; remove one."
        )
    for name, smallest in (("expert_bytes", 1), ("dense_bytes", 0)):
        values = layers[name]
        row = _first((values != -1) & ((values < smallest) | (values > MAX_EXPERT_BYTES)))
        if row is not None:
            raise TraceError(
                f"{where.at(row)}, column {name}: {values[row]} bytes is no size of layer "
                f"{layers['layer'][row]}; give its true size, or null if it is not known."
            )


def shape_layer_array(
    where: str, layer: int, name: str, values: np.ndarray, model: ModelFacts
) -> np.ndarray:
    """Return an array of a layer in its shape: [n_expert, n_embd], [n_expert] or [n_embd].

    Raises
    ------
    TraceError
        It has another number of values, or one that is not finite.
    """
    if name in ("router_matrix", "norm_weight") and model.n_embd is None:
        raise TraceError(
            f"{where}, column {name}: trace.json does not give the model's n_embd; add it."
        )
    shape = {"router_matrix": (model.n_expert, model.n_embd), "norm_weight": (model.n_embd,)}.get(
        name, (model.n_expert,)
    )
    if values.size != int(np.prod(shape)):
        raise TraceError(
            f"{where}, column {name}: layer {layer} has {values.size} values where "
            f"{' × '.join(map(str, shape))} are needed; record the trace again."
        )
    at = _first(~np.isfinite(values))
    if at is not None:
        raise TraceError(
            f"{where}, column {name}: value {at} of layer {layer} is {values[at]}, not a finite "
            "number; record the trace again."
        )
    return values.reshape(shape)
