"""Checks of the values of one column, vectorised; a failure is one sentence with place and remedy.

In: a column as a numpy array, where its rows stand in a file, and the model's facts. Out: nothing, or
a `TraceError`. This module knows nothing of how rows follow each other; `order` checks that.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from tracekit.trace.columns import elements, valid_mask
from tracekit.trace.errors import TraceError
from tracekit.trace.facts import ModelFacts
from tracekit.trace.schema import DECODE, LAYER_TIMES, PREFETCHED, SINCE_VERSION_3

# Rows compared at a time: keeps the temporaries of a check small.
CHUNK = 1 << 18
# Of so many slots each is compared with each, which is faster than sorting them.
_COMPARED_SLOTS = 16

Locate = Callable[[int, int], str]
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Where:
    """Names the place of a row: ``run.trace/routing.parquet, row 12``, or a line of a CSV file.

    Attributes
    ----------
    file : str
        What a sentence calls the file.
    first_row : int
        The row of the file at which the checked rows begin.
    locate : callable, optional
        Maps (row of the file, slot) to the words for it.
    """

    file: str
    first_row: int = 0
    locate: Locate | None = None

    def at(self, row: int, slot: int = 0) -> str:
        """Return the words for a row (counted from `first_row`), and a slot of it."""
        if self.locate is not None:
            return self.locate(self.first_row + int(row), int(slot))
        return f"{self.file}, row {self.first_row + int(row)}"


def first_true(marks: np.ndarray) -> int | None:
    """Return the index of the first True, or None."""
    if marks.size == 0:
        return None
    index = int(marks.argmax())
    return index if marks.reshape(-1)[index] else None


# ---- nulls --------------------------------------------------------------------------------------

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


# ---- values -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    """Values of one column, and where they stand.

    Attributes
    ----------
    where : Where
        Of the first row of `values`.
    name : str
    values : numpy.ndarray
        [n] or [n, width], nulls replaced as `tracekit.trace.columns.NULLS` says.
    valid : bool [n] or None
        Which rows are not null; None: all of them.
    """

    where: Where
    name: str
    values: np.ndarray
    valid: np.ndarray | None = None

    def chunk(self, start: int) -> "Column":
        """Return the `CHUNK` rows that begin at `start`."""
        rows = slice(start, start + CHUNK)
        where = replace(self.where, first_row=self.where.first_row + start)
        valid = None if self.valid is None else self.valid[rows]
        return Column(where, self.name, self.values[rows], valid)

    def refuse(self, wrong: np.ndarray, sentence: str) -> None:
        """Raise if `wrong`, of the shape of the values, marks one; ``{value}`` stands for the first.

        Raises
        ------
        TraceError
        """
        at = first_true(wrong)
        if at is None:
            return
        name = _CALLED.get(self.name, self.name)
        if self.values.ndim == 1:
            place, value = f"{self.where.at(at)}, column {name}", self.values[at]
        else:
            row, slot = divmod(at, self.values.shape[1])
            place = f"{self.where.at(row, slot)}, column {name}, slot {slot}"
            value = self.values[row, slot]
        raise TraceError(f"{place}: {sentence.format(value=value)}")


# A sentence about one slot of a list calls it by the name that it has in a CSV file.
_CALLED = {"experts": "expert", "weights": "weight"}


def check_values(column: Column, model: ModelFacts) -> None:
    """Check the values of a column, as far as they can be judged alone.

    Raises
    ------
    TraceError
    """
    check = _CHECKS.get(column.name)
    if check is not None:
        for start in range(0, len(column.values), CHUNK):
            check(column.chunk(start), model)


def _check_count(column: Column, model: ModelFacts) -> None:
    column.refuse(
        column.values < 0,
        f"{{value}} is negative; a {column.name} counts from 0: correct or record it again.",
    )


def _check_phase(column: Column, model: ModelFacts) -> None:
    column.refuse(column.values > DECODE, "{value} is neither 0 (prefill) nor 1 (decode).")


def check_layer_numbers(column: Column, model: ModelFacts) -> None:
    """Check that each value is the number of a layer of the model.

    Raises
    ------
    TraceError
    """
    column.refuse(
        (column.values < 0) | (column.values >= model.n_layer),
        f"{{value}} is no layer of a model with {model.n_layer} of them (0 to "
        f"{model.n_layer - 1}); correct the row or the model's n_layer.",
    )


def _check_experts(column: Column, model: ModelFacts) -> None:
    values = column.values
    column.refuse(
        values >= model.n_expert,
        f"expert {{value}} is not below the model's n_expert = {model.n_expert}; correct the row "
        "or n_expert.",
    )
    row = first_true(_has_repeat(values))
    if row is not None:
        chosen = values[row].tolist()
        slot = next(s for s, expert in enumerate(chosen) if expert in chosen[:s])
        raise TraceError(
            f"{column.where.at(row, slot)}, column expert: expert {chosen[slot]} stands twice in "
            f"one routing (slots {chosen.index(chosen[slot])} and {slot}); a token selects "
            "distinct experts: correct or record it again."
        )


def _has_repeat(experts: np.ndarray) -> np.ndarray:
    """Say which rows of `experts` [n, k] hold an expert twice, bool [n]."""
    if experts.shape[1] > _COMPARED_SLOTS:
        ordered = np.sort(experts, axis=1)
        has_repeat: np.ndarray = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
        return has_repeat
    slots = np.ascontiguousarray(experts.T)
    has_repeat = np.zeros(len(experts), dtype=bool)
    for later in range(1, len(slots)):
        for earlier in range(later):
            has_repeat |= slots[later] == slots[earlier]
    return has_repeat


def _check_weights(column: Column, model: ModelFacts) -> None:
    column.refuse(
        (column.values < 0) | np.isinf(column.values),
        "{value} is no routing weight; it is a finite number from 0 up, or null (nan in a CSV) if "
        "unknown.",
    )


def _check_residency(column: Column, model: ModelFacts) -> None:
    column.refuse(
        (column.values > PREFETCHED) & (column.values != 255),
        "{value} is not 0 (miss), 1 (hit) or 2 (prefetched), nor null.",
    )


def _check_dropped(column: Column, model: ModelFacts) -> None:
    column.refuse((column.values > 1) & (column.values != 255), "{value} is not 0 or 1, nor null.")


def _check_finite(column: Column, model: ModelFacts) -> None:
    values = column.values
    may_mask = column.name == "logits"  # -inf there: the expert is never selected
    # A row's sum is finite only if its values are (or overflow, which the second look rules out).
    # A row's largest value is finite only if the values are, but for -inf.
    with np.errstate(over="ignore", invalid="ignore"):
        whole = values.max(axis=1) if may_mask else values.sum(axis=1, dtype=np.float32)
    suspect = ~np.isfinite(whole)
    if column.valid is not None:
        suspect &= column.valid
    for row in np.flatnonzero(suspect).tolist():
        wrong = ~np.isfinite(values[row])
        if may_mask and whole[row] != -np.inf:
            wrong &= values[row] != -np.inf
        at = first_true(wrong)
        if at is not None:
            raise TraceError(
                f"{column.where.at(row)}, column {column.name}: value {at} is {values[row, at]}, "
                "not a finite number; the recording is damaged or the model computed it: record "
                "it again."
            )


def _check_amount(column: Column, model: ModelFacts) -> None:
    # Null is -1 in a column of counts and NaN in one of times.
    least = -1 if column.values.dtype.kind == "i" else 0
    column.refuse(
        (column.values < least) | np.isinf(column.values),
        "{value} is no amount; it is a finite number from 0 up, or null if unknown.",
    )


_CHECKS: dict[str, Callable[[Column, ModelFacts], None]] = {
    "turn": _check_count,
    "pass": _check_count,
    "step": _check_count,
    "phase": _check_phase,
    "layer": check_layer_numbers,
    "experts": _check_experts,
    "weights": _check_weights,
    "residency": _check_residency,
    "dropped": _check_dropped,
    "logits": _check_finite,
    "gate_input": _check_finite,
    "embedding": _check_finite,
    **dict.fromkeys(
        ("token", "wall_ms", "io_ms", "stall_ms", "read_bytes", "lookups", "hits"), _check_amount
    ),
    **dict.fromkeys((*LAYER_TIMES, *SINCE_VERSION_3), _check_amount),
}
