"""How much a column of a Parquet file opens into, read from its page headers before it is opened.

In: the path of a file and the name of a column. Out: numbers of values and bytes. Nothing is
decompressed here. pyarrow knows the same numbers, but ends the process where a footer is damaged.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

from tracekit.trace.bytes_of import Bytes

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
_WHOLE = (4, 5, 6)  # of 16, 32 and 64 bits
_TAIL = 8  # the length of the footer, and the magic number
_LONGEST_PAGE_HEADER = 1 << 16  # it may hold the smallest and the largest value of a page

# A struct of Thrift: its fields by number.
Fields = dict[int, Any]


class DamagedError(ValueError):
    """The bytes are no Thrift, or not what a Parquet file has."""


@dataclass(frozen=True)
class Opened:
    """What one column of one row group opens into.

    Attributes
    ----------
    values : int
        In all data pages; the elements of lists are counted one by one, nulls too.
    plain_bytes, dictionary_bytes : int
        Of data pages and of dictionaries, decompressed. A value of a data page may stand for any
        value of the dictionary.
    """

    values: int
    plain_bytes: int
    dictionary_bytes: int


def opened(path: Bytes, column: str) -> Iterator[Opened]:
    """Yield for each row group of the file what `column` opens into, all that is inside it.

    Raises
    ------
    DamagedError
        The footer or a page header cannot be read.
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        for group in _groups(file, size):
            found = Opened(0, 0, 0)
            for facts in (facts for name, facts in group if name == column.encode()):
                start = min(facts.get(number) or size for number in (9, 11))
                stop = start + _field(facts, 7, int)
                found = _added(found, file, start, min(stop, size))
            yield found


def null_columns(path: Bytes) -> frozenset[str]:
    """Return the columns all of whose values are null, as the statistics of the file tell.

    Raises
    ------
    DamagedError, OSError
        As for `opened`.
    """
    has_values: dict[bytes, bool] = {}
    with path.open("rb") as file:
        for group in _groups(file, file.seek(0, os.SEEK_END)):
            for name, facts in group:
                is_null = _field(facts.get(12, {}), 3, int, -1) == _field(facts, 5, int)
                has_values[name] = has_values.get(name, False) or not is_null
    return frozenset(n.decode("utf-8", "replace") for n, has in has_values.items() if not has)


def _groups(file: IO[bytes], size: int) -> Iterator[list[tuple[bytes, Fields]]]:
    """Yield for each row group the column of each of its chunks, and the facts of the chunk."""
    file.seek(max(0, size - _TAIL))
    footer = int.from_bytes(file.read(4), "little")
    if footer + _TAIL > size:
        raise DamagedError("its footer is cut off")
    file.seek(size - _TAIL - footer)
    for group in _field(Thrift(file.read(footer)).struct(), 4, list):
        chunks = [_field(chunk, 3, dict) for chunk in _field(group, 1, list)]
        yield [(b"".join(_field(facts, 3, list)[:1]), facts) for facts in chunks]


def _added(found: Opened, file: Any, start: int, stop: int) -> Opened:
    """Return `found` with what the pages between two places of `file` open into."""
    values, plain, dictionary = found.values, found.plain_bytes, found.dictionary_bytes
    while start < stop:
        file.seek(start)
        thrift = Thrift(file.read(min(_LONGEST_PAGE_HEADER, stop - start)))
        header = thrift.struct()
        opened_bytes, stored = _field(header, 2, int), _field(header, 3, int)
        if opened_bytes < 0 or stored < 0:
            raise DamagedError("the size of a page is negative")
        if 7 in header:  # a page of the dictionary
            dictionary += opened_bytes
        else:
            plain += opened_bytes
            for number in (5, 8):  # data pages of version 1 and 2
                values += max(0, _field(header.get(number, {1: 0}), 1, int))
        start += thrift.at + stored
    return Opened(values, plain, dictionary)


def _field(fields: Any, number: int, kind: type, default: Any = None) -> Any:
    value = fields.get(number, default) if isinstance(fields, dict) else default
    if not isinstance(value, kind):
        raise DamagedError(f"field {number} is missing or of another type")
    return value


class Thrift:
    """Reads values of Thrift's compact protocol from bytes, one after the other.

    Attributes
    ----------
    at : int
        Where the next value begins.
    """

    def __init__(self, data: bytes):
        self._data = data
        self.at = 0

    def struct(self) -> Fields:
        """Read a struct.

        Raises
        ------
        DamagedError
        """
        try:
            return self._struct()
        except (IndexError, RecursionError) as error:
            raise DamagedError("a struct has no end") from error

    def _struct(self) -> Fields:
        data, number = self._data, 0
        fields: Fields = {}
        while True:
            head = data[self.at]
            self.at += 1
            if head == _STOP:
                return fields
            number = number + (head >> 4) if head >> 4 else self._whole()
            kind = head & 15
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind)

    def _value(self, kind: int) -> Any:
        if kind in _WHOLE:
            return self._whole()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self._struct()
        if kind in (_LIST, _SET):
            return self._list()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind in (_TRUE, _FALSE, _BYTE):
            return self._byte()
        raise DamagedError(f"there is no type {kind} in Parquet's headers")

    def _list(self) -> list[Any]:
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._varint()
        # An element takes a byte or more, so a count that lies ends with the data.
        return [self._value(head & 15) for _ in range(count)]

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        self.at += count
        if self.at > len(self._data):
            raise IndexError
        return self._data[self.at - count : self.at]

    def _varint(self) -> int:
        value = shift = 0
        data, at = self._data, self.at
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                self.at = at
                return value
            shift += 7
            if shift > 63:
                raise DamagedError("a number has no end")

    def _whole(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
