"""Columns of Arrow tables, of any width of numbers, as the arrays that rows are made of.

In: a table and what its columns are called. Out: `Rows`. A value that is missing is refused with the
number of its row.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.formats.archives import damaged
from tracekit.formats.grouping import NARROW, LineOf, Rows
from tracekit.formats.names import NEITHER, OF_SLOTS, WORDS, Named
from tracekit.formats.turns import Labels
from tracekit.trace import TraceError
from tracekit.trace.columns import from_numpy, one_chunk, to_numpy, valid_mask, value_type

# Of these a value may be missing.
_NULLS = {
    "weights": np.nan,
    "token_id": -1,
    "residency": 255,
    "dropped": 255,
    "kept": 1,
    "expert_bytes": -1,
}
# Beyond it floats do not tell whole numbers apart.
_LARGEST_WHOLE = 1 << 53
# Whole numbers that are signed and fit 64 bits, so that they can be compared and counted on.
_WHOLE = (pa.int16(), pa.int32(), pa.int64())


@dataclass
class ArrowRows:
    """Makes rows of tables that follow each other.

    Parameters
    ----------
    name : str
        What sentences call the file.
    names : Named
    line_of : callable
        Maps the number of a row to the words that tell a user where it is.
    codes_appear_in_order : bool
        Whether the texts of dictionaries stand in the order in which the rows first have them.
    """

    name: str
    names: Named
    line_of: LineOf
    codes_appear_in_order: bool = False
    labels: Labels = field(default_factory=Labels, init=False)
    _n_rows: int = 0

    def rows(self, table: pa.Table) -> Rows:
        """Return the rows of the next table.

        Raises
        ------
        TraceError
            A value is missing or of another type.
        """
        with damaged(self.name):
            return self._rows(table)

    def _rows(self, table: pa.Table) -> Rows:
        number = np.arange(self._n_rows, self._n_rows + table.num_rows)
        self._n_rows += table.num_rows
        lists = one_chunk(table[self.names["experts"]])
        if _is_list(lists.type) and lists.null_count == 0:
            filled = _lengths(lists) > 0
            if not filled.all():  # a layer without experts
                number, table = number[filled], table.filter(pa.array(filled, pa.bool_()))
        columns: dict[str, Any] = {}
        for name, called in self.names.found.items():
            chunk = one_chunk(table[called])
            if name == "prompt":
                columns["turn"] = self._turns(called, chunk, number)
            elif name in OF_SLOTS and name in _NULLS and chunk.null_count == len(chunk) > 0:
                kind = np.float32 if name == "weights" else np.uint8  # null in all of these rows
                columns[name] = np.full(columns["experts"].shape, _NULLS[name], kind)
            else:
                read = self._codes if name in WORDS else self._numbers
                values = read(name, called, chunk, number)
                columns["passes" if name == "pass" else name] = values
        for name in OF_SLOTS:
            if name in columns and columns[name].shape != columns["experts"].shape:
                raise TraceError(
                    f"{self.name}: {self.names[name]} does not have one value for each of "
                    f"{self.names['experts']}; write one for each."
                )
        columns.setdefault("token", np.zeros_like(number))
        return Rows(number=number, **columns)

    def _numbers(self, name: str, called: str, array: pa.Array, number: np.ndarray) -> np.ndarray:
        """Return whole numbers, of `NARROW` as wide as they come, others float32; lists as [n, k]."""
        wanted = pa.float32() if name == "weights" else pa.int64()
        if name in NARROW and value_type(array.type) in _WHOLE:
            wanted = value_type(array.type)
        kind = array.type
        if _is_list(kind):
            if name not in OF_SLOTS:
                raise self._wrong(called, "a number", kind)
            if name not in _NULLS:
                self._refuse_null(called, array, number)
            flat, width = self._flat(called, array, number)
            values = self._cast(called, flat, wanted)
            if name == "experts":
                self._refuse_null(called, values, np.repeat(number, width))
            return to_numpy(values, _NULLS.get(name, 0)).reshape(len(array), width)
        values = self._cast(called, array, wanted)
        if name not in _NULLS:
            self._refuse_null(called, values, number)
        return to_numpy(values, _NULLS.get(name, 0))

    def _cast(self, called: str, array: pa.Array, wanted: pa.DataType) -> pa.Array:
        kind = array.type
        if pa.types.is_floating(kind) and not pa.types.is_floating(wanted):
            return self._whole(called, array)
        is_right = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if not is_right and not pa.types.is_null(kind):
            words = "a number" if pa.types.is_floating(wanted) else "a whole number"
            raise self._wrong(called, words, kind)
        try:
            return array if kind == wanted else array.cast(wanted, safe=wanted != pa.float32())
        except pa.ArrowInvalid as error:
            raise TraceError(
                f"{self.name}: {called} has a number that does not fit 64 bits; correct it."
            ) from error

    def _whole(self, called: str, array: pa.Array) -> pa.Array:
        """Return floats as int64, as pandas writes whole numbers of which some are missing."""
        values = to_numpy(array, np.nan).astype(np.float64)
        known = ~np.isnan(values)
        wrong = known & ~((np.rint(values) == values) & (np.abs(values) < _LARGEST_WHOLE))
        if wrong.any():
            raise TraceError(
                f"{self.name}: {called} holds {values[wrong][0]}, where a whole number is needed; "
                "correct it."
            )
        return from_numpy(np.where(known, values, 0), pa.int64(), len(values), known)

    def _wrong(self, called: str, wanted: str, kind: pa.DataType) -> TraceError:
        return TraceError(
            f"{self.name}: {called} holds values of type {kind}, where {wanted} is needed; write "
            "it so."
        )

    def _flat(self, called: str, array: pa.Array, number: np.ndarray) -> tuple[pa.Array, int]:
        """Return the elements of lists that are all of one length, and that length."""
        flat = array.flatten()
        if _is_fixed(array.type):
            return flat, int(array.type.list_size)
        lengths = _lengths(array)
        width = int(lengths[0]) if len(lengths) else 1
        if array.null_count:
            return self._with_null_lists(called, array, number)
        other = np.flatnonzero(lengths != width)
        if len(other):
            raise TraceError(
                f"{self.line_of(int(number[other[0]]))}: {called} has {lengths[other[0]]} values "
                f"where other rows have {width}; every routing of a trace has the same number of "
                "experts: correct it."
            )
        return flat, width

    def _with_null_lists(
        self, called: str, array: pa.Array, number: np.ndarray
    ) -> tuple[pa.Array, int]:
        """Return the elements as `_flat` does, as many nulls where a list is null."""
        known = to_numpy(array.is_valid().cast(pa.uint8())).astype(np.bool_)
        flat, width = self._flat(called, array.filter(pa.array(known)), number[known])
        at = np.zeros((len(array), width), np.int64)
        at[known] = np.arange(len(flat)).reshape(-1, width)
        return flat.take(
            from_numpy(at.reshape(-1), pa.int64(), at.size, np.repeat(known, width))
        ), width

    def _refuse_null(self, called: str, array: pa.Array, number: np.ndarray) -> None:
        if array.null_count:
            at = int(np.flatnonzero(to_numpy(array.is_null().cast(pa.uint8())))[0])
            is_expert = called == self.names["experts"]
            mend = (
                "write it, or -1 in all slots of a routing that was not there"
                if is_expert
                else "write it"
            )
            raise TraceError(f"{self.line_of(int(number[at]))}: its {called} is missing; {mend}.")

    def _turns(self, called: str, array: pa.Array, number: np.ndarray) -> np.ndarray:
        self._refuse_null(called, array, number)
        if pa.types.is_integer(array.type):
            return self.labels.of(to_numpy(self._cast(called, array, pa.int64())))
        index, values = self._coded(called, array)
        return self.labels.numbers(index, values)

    def _codes(self, name: str, called: str, array: pa.Array, number: np.ndarray) -> np.ndarray:
        """Return the numbers that words stand for, or the numbers themselves; lists as [n, k]."""
        if _is_list(array.type):
            if name not in OF_SLOTS:
                raise self._wrong(called, "one value", array.type)
            flat, width = self._flat(called, array, number)
            codes = self._codes(name, called, flat, np.repeat(number, width))
            return codes.reshape(len(array), width)
        if name not in _NULLS:
            self._refuse_null(called, array, number)
        null = _NULLS.get(name, 0)
        if pa.types.is_boolean(array.type):
            return np.where(valid_mask(array), to_numpy(array), null).astype(np.uint8)
        known = WORDS[name]
        if pa.types.is_integer(array.type) or pa.types.is_null(array.type):
            codes = to_numpy(self._cast(called, array, pa.int64()), null)
            wrong = ~np.isin(
                codes, (*known.values(), null) if name in _NULLS else (*known.values(),)
            )
        else:
            index, texts = self._words(called, array)
            numbers = [known.get(str(text).strip().lower(), -1) for text in texts]
            codes = np.array([*numbers, null], np.int16)[index]
            wrong = codes < 0
        if wrong.any():
            raise TraceError(
                f"{self.line_of(int(number[wrong.argmax()]))}: {called} is {NEITHER[name]}; "
                "correct it."
            )
        return codes.astype(np.uint8)

    def _words(self, called: str, array: pa.Array) -> tuple[np.ndarray, list[object]]:
        """Return which text each row has, -1 for a null, and the texts."""
        if pa.types.is_nested(array.type):
            raise self._wrong(called, "a text or a number", array.type)
        coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
        indices = coded.indices
        if indices.type != pa.int32():
            indices = indices.cast(pa.int64())
        return to_numpy(indices, -1), coded.dictionary.to_pylist()

    def _coded(self, called: str, array: pa.Array) -> tuple[np.ndarray, list[object]]:
        """Return which text each row has, and the texts in the order they first appear."""
        index, texts = self._words(called, array)
        if pa.types.is_dictionary(array.type) and not self.codes_appear_in_order:
            starts = np.append(0, np.flatnonzero(index[1:] != index[:-1]) + 1)
            seen, first = np.unique(index[starts[: len(index)]], return_index=True)
            order = np.argsort(first)
            place = np.zeros(len(texts), np.int64)
            place[seen[order]] = np.arange(len(seen))
            return place[index], [texts[at] for at in seen[order]]
        return index, texts


def _is_fixed(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_list(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(_is_fixed(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _lengths(lists: pa.Array) -> np.ndarray:
    """Return the length of each list, int64 [n]."""
    if _is_fixed(lists.type):
        return np.full(len(lists), lists.type.list_size)
    return np.diff(to_numpy(lists.offsets.cast(pa.int64())))
