"""Binary logs of an engine: a record for each call of a layer, with three numbers before its experts.

In: a file of records, little-endian 32-bit integers, in the order of the graph. Out: the rows. Sizes that a
record claims are compared with the file before anything is allocated.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tracekit.formats.archives import damaged, opened
from tracekit.formats.engine_passes import Computed
from tracekit.formats.source import Source
from tracekit.trace import TraceError

INT = np.dtype("<i4")
PLACES = 3  # numbers before the experts
MOST_LAYERS, MOST_EXPERTS = 1 << 15, 1 << 12
MOST_NUMBERS = 1 << 26  # of a record: 8 million tokens with 8 experts
_PIECE = 1 << 22  # numbers that are read at once
_GUESS = 64  # records that may be of one shape


class Records:
    """The records of a file.

    Parameters
    ----------
    path : Path
    order : sequence of str
        What the three numbers are: ``layer``, ``n_tokens``, ``k`` in any order.
    skipped : int
        Bytes before the first record.
    """

    def __init__(self, path: Path, order: Sequence[str], skipped: int = 0):
        self.path = path
        self._at = tuple(order.index(name) for name in ("layer", "n_tokens", "k"))
        self._skipped = skipped
        self._k = 0
        self._n_calls = 0

    def place(self, number: int) -> str:
        """Return the words for the number at which a row begins."""
        return f"{self.path}, byte {self._skipped + number * INT.itemsize}"

    def rows(self, source: Source) -> Iterator[Computed]:
        """Yield the rows, piece by piece; tell the source if the last record is cut.

        Raises
        ------
        TraceError
            A record is none; the sentence says where.
        """
        with opened(self.path) as file, damaged(str(self.path)):
            size = file.seek(0, os.SEEK_END)
            n_left = (size - self._skipped) // INT.itemsize
            file.seek(self._skipped)
            values, first, lacking = np.empty(0, INT), 0, 0
            # A record that goes on beyond the end of the file is cut; its numbers are not read.
            while n_left and lacking <= n_left:
                n_read = min(max(_PIECE, lacking), n_left)
                data = file.read(n_read * INT.itemsize)
                if len(data) < n_read * INT.itemsize:
                    raise EOFError("it became shorter while it was read")
                n_left -= n_read
                values = np.concatenate((values, np.frombuffer(data, INT)))
                calls, end, lacking = self._calls(values, first)
                if len(calls):
                    yield self._computed(values, calls, first)
                values, first = values[end:], first + end
            if len(values) or n_left or (size - self._skipped) % INT.itemsize:
                source.cut(f"{self.path} is incomplete: its last record is cut off, and left out.")

    def _calls(self, values: np.ndarray, first: int) -> tuple[np.ndarray, int, int]:
        """Return the whole records, where they end, and how many numbers the next one lacks.

        A record is start, layer, tokens and k, int [n, 4].
        """
        found, place, guess = [np.empty((0, 4), np.int64)], 0, _GUESS
        while place + PLACES <= len(values):
            layer, n_tokens, k = (int(values[place + at]) for at in self._at)
            size = PLACES + n_tokens * k
            is_possible = 0 <= layer < MOST_LAYERS and n_tokens >= 0 and 1 <= k <= MOST_EXPERTS
            if not is_possible or size > MOST_NUMBERS:
                raise TraceError(
                    f"{self.place(first + place)}: a record of layer {layer}, {n_tokens} tokens and "
                    f"{k} experts is impossible; the file is damaged or of another kind: record it "
                    "again."
                )
            n_records = min(guess, (len(values) - place) // size)
            if not n_records:
                return np.concatenate(found), place, place + size - len(values)
            # Mostly many records of one shape follow each other: those of a pass, of many decoded tokens.
            starts = place + size * np.arange(n_records)
            layers, tokens, widths = (values[starts + at] for at in self._at)
            same = (tokens == n_tokens) & (widths == k) & (layers >= 0) & (layers < MOST_LAYERS)
            n_same = n_records if same.all() else int(same.argmin())
            found.append(np.stack((starts, layers, tokens, widths), axis=1)[:n_same])
            place += size * n_same
            guess = 2 * guess if n_same == guess else _GUESS
        return np.concatenate(found), place, 0

    def _computed(self, values: np.ndarray, calls: np.ndarray, first: int) -> Computed:
        start, layer, n_tokens, widths = calls.T
        k = self._k = self._k or int(widths[0])
        other = np.flatnonzero(widths != k)
        if len(other):
            raise TraceError(
                f"{self.place(first + int(start[other[0]]))}: a token selects {widths[other[0]]} "
                f"experts here and {k} before; a trace has one number of experts a routing: record "
                "it again."
            )
        call = np.repeat(np.arange(len(calls)), n_tokens)
        row = np.arange(len(call)) - np.repeat(np.cumsum(n_tokens) - n_tokens, n_tokens)
        place = start[call] + PLACES + row * k
        computed = Computed(
            layer=layer[call],
            experts=values[place[:, None] + np.arange(k)],
            call=call + self._n_calls,
            number=first + place,
        )
        self._n_calls += len(calls)
        return computed
