"""Which turn each row of a file is of: by the label of its prompt, or by where its tokens begin anew.

In: rows piece by piece, in the order of the file. Out: turns counted from 0, in the order they appear.
"""

from collections.abc import Sequence

import numpy as np


class Labels:
    """Numbers the labels of prompts in the order they first appear."""

    def __init__(self) -> None:
        self._number: dict[object, int] = {}
        self._labels: list[object] = []

    def since(self, number: int) -> list[object]:
        """Return the labels with this number and those after it."""
        return self._labels[number:]

    def numbers(self, index: np.ndarray, values: Sequence[object]) -> np.ndarray:
        """Return the number of each row's label, int64 [n].

        Parameters
        ----------
        index : int [n]
            Which of `values` is the label of a row.
        values : sequence
            The different labels of these rows, in the order they first appear.
        """
        numbers: np.ndarray = np.array([self._of(value) for value in values], np.int64)[index]
        return numbers

    def _of(self, label: object) -> int:
        number = self._number.setdefault(label, len(self._labels))
        if number == len(self._labels):
            self._labels.append(label)
        return number

    def of(self, labels: np.ndarray) -> np.ndarray:
        """Return the number of each label of an array of numbers, int64 [n]."""
        if not len(labels):
            return np.empty(0, np.int64)
        # Rows of one prompt mostly follow each other: only where the label changes is it looked up.
        starts = np.append(0, np.flatnonzero(labels[1:] != labels[:-1]) + 1)
        values, first, index = np.unique(labels[starts], return_index=True, return_inverse=True)
        order = np.argsort(first)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        numbers = self.numbers(place[index], values[order].tolist())
        return np.repeat(numbers, np.diff(np.append(starts, len(labels))))


class Turns:
    """Finds where turns begin in rows that have no label of their prompt.

    A turn begins where the token falls back to the first one of the turn before it or further, and
    the layer does not go on: tokens of one pass may begin anew at each layer.

    Attributes
    ----------
    any : bool
        Whether there were such rows.
    """

    def __init__(self) -> None:
        self.any = False
        self._turn = 0
        self._first: int | None = None
        self._last: tuple[int, int, int] = (0, 0, 0)

    def of(self, layer: np.ndarray, token: np.ndarray, passes: np.ndarray | None) -> np.ndarray:
        """Return the turn of each row, int64 [n].

        Parameters
        ----------
        layer, token : int [n]
        passes : int [n] or None
            Where they are known, a turn begins with a pass.
        """
        if not len(layer):
            return np.empty(0, np.int64)
        self.any = True
        numbers = passes if passes is not None else np.zeros(1, np.int64)
        if self._first is None:
            self._first = int(token[0])
            self._last = int(layer[0]), int(token[0]), int(numbers[0])
        layer_before = np.append(self._last[0], layer[:-1])
        token_before = np.append(self._last[1], token[:-1])
        begins = (token < token_before) & (layer <= layer_before)
        if passes is not None:
            pass_before = np.append(self._last[2], passes[:-1])
            begins = (passes < pass_before) | (begins & (passes != pass_before))
        starts = []
        for at in np.flatnonzero(begins & (token <= self._first)).tolist():
            if token[at] <= self._first:
                self._first = int(token[at])
                starts.append(at)
        turn = np.full(len(layer), self._turn)
        for at in starts:
            turn[at:] += 1
        self._turn = int(turn[-1])
        self._last = int(layer[-1]), int(token[-1]), int(numbers[-1])
        return turn
