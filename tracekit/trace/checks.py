"""Checks of a trace's values: vectorised, each failure one sentence that names place and mend."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tracekit.trace.columns import elements, valid_mask
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts, TraceFacts
from tracekit.trace.schema import DECODE, PREFETCHED

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


def first_true(bad: np.ndarray) -> int | None:
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
    row = None if valid is None else first_true(~valid)
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


def _check_not_negative(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    row = first_true(values < 0)
    if row is not None:
        raise TraceError(
            f"{where.at(row)}, column {name}: {values[row]} is negative; "
            f"a {name} counts from 0: correct or record it again."
        )


def _check_phase(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    row = first_true(values > DECODE)
    if row is not None:
        raise TraceError(
            f"{where.at(row)}, column phase: {values[row]} is neither 0 (prefill) nor 1 (decode)."
        )


def _check_layer(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    n_layer = facts.model.n_layer
    row = first_true((values < 0) | (values >= n_layer))
    if row is not None:
        raise TraceError(
            f"{where.at(row)}, column layer: {values[row]} is no layer of a model with "
            f"{n_layer} of them (0 to {n_layer - 1}); correct the row or the model's n_layer."
        )


def _check_experts(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    n_expert = facts.model.n_expert
    k = values.shape[1]
    at = first_true(values >= n_expert)
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
    row = first_true(twice)
    if row is not None:
        chosen = values[row].tolist()
        slot = next(s for s in range(k) if chosen[s] in chosen[:s])
        raise TraceError(
            f"{where.at(row, slot)}, column expert: expert {chosen[slot]} stands twice in one "
            f"routing (slots {chosen.index(chosen[slot])} and {slot}); a token selects "
            "distinct experts: correct or record it again."
        )


def _check_weights(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    at = first_true((values < 0) | np.isinf(values))
    if at is not None:
        row, slot = divmod(at, values.shape[1])
        raise TraceError(
            f"{where.at(row, slot)}, column weight, slot {slot}: {values[row, slot]} is no "
            "routing weight; it is a finite number from 0 up, or null (nan in a CSV) if unknown."
        )


def _check_codes(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    largest, meaning = {
        "residency": (PREFETCHED, "0 (miss), 1 (hit) or 2 (prefetched)"),
        "dropped": (1, "0 or 1"),
    }[name]
    at = first_true((values > largest) & (values != 255))
    if at is not None:
        row, slot = divmod(at, values.shape[1])
        raise TraceError(
            f"{where.at(row, slot)}, column {name}, slot {slot}: {values[row, slot]} is not "
            f"{meaning}, nor null."
        )


def _check_finite(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    masks = name == "logits"  # −inf is legal there: the expert is never selected
    # A row's sum is finite only if its values are (or overflow, which the second look rules out).
    # A row's largest value is finite only if its values are, but for −inf.
    with np.errstate(over="ignore", invalid="ignore"):
        whole = values.max(axis=1) if masks else values.sum(axis=1, dtype=np.float32)
    suspect = ~np.isfinite(whole)
    if valid is not None:
        suspect &= valid
    for row in np.flatnonzero(suspect):
        wrong = ~np.isfinite(values[row])
        if masks and whole[row] != -np.inf:
            wrong &= values[row] != -np.inf
        at = first_true(wrong)
        if at is not None:
            raise TraceError(
                f"{where.at(row)}, column {name}: value {at} is {values[row, at]}, not a finite "
                "number; the recording is damaged or the model computed it: record it again."
            )


def _check_amount(
    where: Where, name: str, values: np.ndarray, valid: np.ndarray | None, facts: TraceFacts
) -> None:
    # Null is -1 of a count and NaN of a time.
    row = first_true((values < (-1 if values.dtype.kind == "i" else 0)) | np.isinf(values))
    if row is not None:
        raise TraceError(
            f"{where.at(row)}, column {name}: {values[row]} is no amount; it is a finite number "
            "from 0 up, or null if unknown."
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
    "embedding": _check_finite,
    **dict.fromkeys(
        ("token", "wall_ms", "io_ms", "stall_ms", "read_bytes", "lookups", "hits"), _check_amount
    ),
}


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
        row = first_true((values != -1) & ((values < smallest) | (values > MAX_EXPERT_BYTES)))
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
        It has another number of values, or one that is not finite; −inf may stand in a bias.
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
    wrong = ~np.isfinite(values)
    if name in ("router_bias", "selection_bias"):
        wrong &= values != -np.inf  # the expert is never selected
    at = first_true(wrong)
    if at is not None:
        raise TraceError(
            f"{where}, column {name}: value {at} of layer {layer} is {values[at]}, not a finite "
            "number; record the trace again."
        )
    return values.reshape(shape)
