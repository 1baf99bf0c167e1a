"""Arrow columns to numpy arrays and back, through their buffers.

In: a column or an array. Out: the other, without a copy where the type fits. This module knows the
columns of a trace by name only to say what stands for null in an array.

``to_numpy()`` and ``pa.array(...)`` of pyarrow import pandas wherever it is installed, which takes
longer than reading most traces, and ``to_pandas_dtype()`` fails without pandas in older versions of
pyarrow; the buffers hold the same bytes.
"""

from collections.abc import Mapping, Sequence, Sized
from typing import Any

import numpy as np
import pyarrow as pa

from tracekit.trace.errors import TraceError

# The values of a column: an array; for a binary or variable-width list column one object a row.
Values = np.ndarray | Sequence[bytes | np.ndarray | None]

# What stands for null in the numpy array of a column: -1 where only a count or an id can be.
NULLS: dict[str, Any] = {
    "weights": np.nan,
    "residency": 255,
    "dropped": 255,
    "logits": np.nan,
    "gate_input": np.nan,
    "wait_ms": np.nan,
    "compute_ms": np.nan,
    "kept": True,
    "token": -1,
    "wall_ms": np.nan,
    "io_ms": np.nan,
    "stall_ms": np.nan,
    "read_bytes": -1,
    "lookups": -1,
    "hits": -1,
    "start_s": np.nan,
    "cpu_ms": np.nan,
    "evict_ms": np.nan,
    "major_faults": -1,
    "mem_available_bytes": -1,
    "embedding": np.nan,
    "expert_bytes": -1,
    "dense_bytes": -1,
}

# The types of all columns that a trace can have.
_NUMPY_TYPES: dict[pa.DataType, np.dtype] = {
    pa.bool_(): np.dtype(np.bool_),
    pa.uint8(): np.dtype(np.uint8),
    pa.uint16(): np.dtype(np.uint16),
    pa.int16(): np.dtype(np.int16),
    pa.int32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.float16(): np.dtype(np.float16),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
}


def value_type(arrow_type: pa.DataType) -> pa.DataType:
    """Return the type of a list's elements, and any other type as it is."""
    is_list = pa.types.is_fixed_size_list(arrow_type) or pa.types.is_list(arrow_type)
    return arrow_type.value_type if is_list else arrow_type


def numpy_type(arrow_type: pa.DataType) -> np.dtype:
    """Return the numpy type of the values of a primitive or list column of a trace.

    Raises
    ------
    TraceError
        No column of a trace has this type; somebody added it.
    """
    inside = value_type(arrow_type)
    if inside not in _NUMPY_TYPES:
        raise TraceError(
            f"A column of type {arrow_type} is none of a trace and has no array; read it with "
            "Trace.table."
        )
    return _NUMPY_TYPES[inside]


def valid_mask(array: pa.Array) -> np.ndarray:
    """Return which elements of `array` are not null, bool [n]."""
    bits = array.buffers()[0]
    if array.null_count == 0 or bits is None:
        return np.ones(len(array), dtype=bool)
    return _unpacked(bits, array)


def _unpacked(bits: pa.Buffer, array: pa.Array) -> np.ndarray:
    """Return the bits of `array`'s elements, bool [n]; Arrow packs eight to a byte."""
    first = array.offset // 8
    last = (array.offset + len(array) + 7) // 8
    packed = np.frombuffer(bits, np.uint8)[first:last]
    unpacked = np.unpackbits(packed, bitorder="little")
    start = array.offset - 8 * first
    return unpacked[start : start + len(array)].astype(bool)


def _primitive(array: pa.Array, null: Any) -> np.ndarray:
    dtype = numpy_type(array.type)
    if len(array) == 0:
        return np.empty(0, dtype)
    if dtype == np.bool_:
        return np.where(valid_mask(array), _unpacked(array.buffers()[1], array), bool(null))
    values = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    if array.null_count:
        values = np.where(valid_mask(array), values, dtype.type(null))
    return values


def elements(array: pa.Array) -> pa.Array:
    """Return the elements of all lists of a fixed-size list array, null lists included.

    ``flatten()`` imports ``pyarrow.compute``, a tenth of a second.
    """
    width = array.type.list_size
    return array.values.slice(array.offset * width, len(array) * width)


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; pyarrow's own way copies it even where it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def valid_rows(column: pa.ChunkedArray) -> np.ndarray | None:
    """Return which rows are not null, bool [n], or None if all are; a list of nulls is null."""
    masks = []
    for chunk in column.chunks:
        mask = valid_mask(chunk)
        if pa.types.is_fixed_size_list(chunk.type) and elements(chunk).null_count:
            inner = valid_mask(elements(chunk)).reshape(len(chunk), -1)
            mask &= inner.any(axis=1)
        masks.append(mask)
    valid = np.concatenate(masks) if masks else np.ones(0, dtype=bool)
    return None if valid.all() else valid


def spread_nulls(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column of fixed-size lists with null elements where it had null lists.

    Before version 22, pyarrow can neither write nor read null lists of a fixed size in Parquet.
    """
    if column.null_count == 0 or not pa.types.is_fixed_size_list(column.type):
        return column
    chunks = []
    for chunk in column.chunks:
        values = _primitive(elements(chunk), 0).reshape(len(chunk), column.type.list_size)
        inner = valid_mask(elements(chunk)).reshape(values.shape)
        valid = inner & valid_mask(chunk)[:, None]
        chunks.append(from_numpy(values, column.type, len(chunk), valid))
    return pa.chunked_array(chunks, column.type)


def _chunk_to_numpy(array: pa.Array, null: Any) -> np.ndarray:
    if pa.types.is_binary(array.type):
        out = np.empty(len(array), dtype=object)
        out[:] = array.to_pylist()
        return out
    if not pa.types.is_fixed_size_list(array.type):
        return _primitive(array, null)
    values = _primitive(elements(array), null).reshape(len(array), array.type.list_size)
    if array.null_count:
        values = np.where(valid_mask(array)[:, None], values, values.dtype.type(null))
    return values


def to_numpy(column: pa.ChunkedArray | pa.Array, null: Any = 0) -> np.ndarray:
    """Return the values of a column; `null` replaces each null.

    Parameters
    ----------
    column : pa.ChunkedArray or pa.Array
        Of a primitive, fixed-size list or binary type.
    null : scalar
        Ignored for binary columns, whose nulls become None.

    Returns
    -------
    numpy.ndarray
        1-D [n]; 2-D [n, width] of a fixed-size list; objects (bytes) of a binary column. It is a
        read-only view of the column's memory if that is one chunk without nulls.
    """
    if isinstance(column, pa.Array):
        return _chunk_to_numpy(column, null)
    chunks = [chunk for chunk in column.chunks if len(chunk)]
    if len(chunks) == 1:
        return _chunk_to_numpy(chunks[0], null)
    out = empty(column.type, len(column))
    at = 0
    for chunk in chunks:
        out[at : at + len(chunk)] = _chunk_to_numpy(chunk, null)
        at += len(chunk)
    return out


def empty(arrow_type: pa.DataType, n_rows: int) -> np.ndarray:
    """Return an uninitialised array for `n_rows` values of a column."""
    if pa.types.is_binary(arrow_type):
        return np.empty(n_rows, dtype=object)
    if pa.types.is_fixed_size_list(arrow_type):
        return np.empty((n_rows, arrow_type.list_size), dtype=numpy_type(arrow_type))
    return np.empty(n_rows, dtype=numpy_type(arrow_type))


def nulls(arrow_type: pa.DataType, n_rows: int, null: Any) -> np.ndarray:
    """Return `null` as the value of each row of a column, in each place of its lists."""
    values = empty(arrow_type, n_rows)
    values[...] = null
    return values


def _validity(valid: np.ndarray | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid.reshape(-1), bitorder="little"))


def _offsets(values: Sequence[Sized]) -> pa.Buffer:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([len(value) for value in values], out=offsets[1:])
    return pa.py_buffer(offsets)


def cast(values: Any, dtype: np.dtype, name: str) -> np.ndarray:
    """Return values of column `name` as `dtype`, without a copy where they have it.

    Raises
    ------
    ValueError
        A number does not fit a whole-number type, where numpy would write another one.
    """
    given = np.asarray(values)
    with np.errstate(invalid="ignore"):
        out = given.astype(dtype, copy=False)
    if dtype.kind in "iu" and not np.can_cast(given.dtype, dtype) and (out != given).any():
        raise ValueError(f"the column {name!r} has a value that {dtype} cannot hold")
    return out


def to_table(
    columns: Mapping[str, Values | None],
    schema: pa.Schema,
    n_rows: int,
    valid: Mapping[str, np.ndarray | None] | None = None,
) -> pa.Table:
    """Return a table of `schema`; a column that is None or absent in `columns` is all null.

    Parameters
    ----------
    columns : mapping
        Values as for `from_numpy`; names that the schema lacks are passed over.
    schema : pa.Schema
    n_rows : int
    valid : mapping, optional
        By column, as for `from_numpy`.

    Raises
    ------
    ValueError
        As for `from_numpy`.
    """
    valid = {} if valid is None else valid
    arrays = [from_numpy(columns.get(f.name), f.type, n_rows, valid.get(f.name)) for f in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def empty_table(schema: pa.Schema) -> pa.Table:
    """Return a table of no rows; ``schema.empty_table()`` imports pandas."""
    return to_table({}, schema, 0)


def from_numpy(
    values: Values | None,
    arrow_type: pa.DataType,
    n_rows: int,
    valid: np.ndarray | None = None,
) -> pa.Array:
    """Return an Arrow array over `values`, without a copy where the type already fits.

    Parameters
    ----------
    values : numpy.ndarray, list or None
        [n_rows], or [n_rows, width] of a fixed-size list; a list of bytes for a binary column and
        of arrays for one of lists, None for a null; None as a whole: all null.
    arrow_type : pa.DataType
    n_rows : int
    valid : bool array of the shape of `values`, or [n_rows], optional
        False: null. A null fixed-size list is a list of null elements, see `spread_nulls`.

    Raises
    ------
    ValueError
        The shape of `values` is not what `arrow_type` and `n_rows` ask for.
    """
    is_list = pa.types.is_fixed_size_list(arrow_type)
    if values is None:
        return _nulls(arrow_type, n_rows)
    if len(values) != n_rows:
        raise ValueError(f"{len(values)} values given for {n_rows} rows")
    if pa.types.is_binary(arrow_type) or pa.types.is_list(arrow_type):
        return _with_offsets(values, arrow_type)
    shape = (n_rows, arrow_type.list_size) if is_list else (n_rows,)
    array = np.ascontiguousarray(values, dtype=numpy_type(arrow_type))
    if array.shape != shape:
        raise ValueError(f"shape {array.shape} given where {shape} is needed")
    if array.dtype == np.bool_:
        array = np.packbits(array, bitorder="little")
    data = pa.py_buffer(array.reshape(-1))
    if not is_list:
        return pa.Array.from_buffers(arrow_type, n_rows, [_validity(valid), data])
    if valid is not None and valid.ndim == 1:
        valid = np.repeat(valid, arrow_type.list_size)
    flat = pa.Array.from_buffers(arrow_type.value_type, array.size, [_validity(valid), data])
    return pa.Array.from_buffers(arrow_type, n_rows, [None], children=[flat])


def _nulls(arrow_type: pa.DataType, n_rows: int) -> pa.Array:
    if not pa.types.is_fixed_size_list(arrow_type):
        return pa.nulls(n_rows, arrow_type)
    flat = pa.nulls(n_rows * arrow_type.list_size, arrow_type.value_type)
    return pa.Array.from_buffers(arrow_type, n_rows, [None], children=[flat])


def _with_offsets(values: Values, arrow_type: pa.DataType) -> pa.Array:
    """Return a binary column, or one of lists of any length."""
    validity = _validity(np.array([value is not None for value in values], dtype=bool))
    if pa.types.is_binary(arrow_type):
        pieces = [_as_bytes(value) for value in values]
        data = pa.py_buffer(b"".join(pieces))
        return pa.Array.from_buffers(arrow_type, len(pieces), [validity, _offsets(pieces), data])
    dtype = numpy_type(arrow_type)
    lists = [np.empty(0, dtype) if v is None else np.ravel(v).astype(dtype) for v in values]
    flat = np.concatenate(lists) if lists else np.empty(0, dtype)
    child = from_numpy(flat, arrow_type.value_type, len(flat))
    buffers = [validity, _offsets(lists)]
    return pa.Array.from_buffers(arrow_type, len(lists), buffers, children=[child])


def _as_bytes(value: bytes | np.ndarray | None) -> bytes:
    if value is None:
        return b""
    if not isinstance(value, bytes):
        raise TypeError(f"a binary column takes bytes, not {type(value).__name__}")
    return value
