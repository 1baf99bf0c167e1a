"""Stretches of tokens: what a bootstrap draws, since neighbouring tokens are correlated."""

from dataclasses import dataclass

import numpy as np

UNIT_TOKENS = 16
MAX_UNITS = 4096


@dataclass(frozen=True, eq=False)
class Units:
    """Stretches of consecutive decoded tokens of one turn, the units of the bootstrap.

    Attributes
    ----------
    tokens : int
        The most tokens of a unit.
    first : dict of int to int
        The first unit of each turn.
    turn : int32 [U]
        The turn of each unit.
    """

    tokens: int
    first: dict[int, int]
    turn: np.ndarray

    @classmethod
    def of(cls, turns: np.ndarray, lengths: np.ndarray) -> "Units":
        """Cut turns of `lengths` decoded tokens into at most about `MAX_UNITS` units."""
        tokens = UNIT_TOKENS
        while (n := -(-lengths // tokens)).sum() > MAX_UNITS and tokens < lengths.max():
            tokens *= 2
        starts = np.cumsum(n) - n
        first = dict(zip(turns.tolist(), starts.tolist(), strict=True))
        return cls(tokens, first, np.repeat(turns, n))

    def __len__(self) -> int:
        return len(self.turn)

    def of_tokens(self, lengths: np.ndarray) -> np.ndarray:
        """Return the unit of every decoded token of turns of `lengths`, int64, in their order."""
        first = np.array(list(self.first.values()))
        place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        unit: np.ndarray = np.repeat(first, lengths) + place // self.tokens
        return unit

    def of_stretch(self, turn: int, start: int, count: int) -> np.ndarray:
        """Return the unit of each of `count` tokens of `turn` from its token `start` on, int64."""
        return self.first[turn] + (start + np.arange(count)) // self.tokens
