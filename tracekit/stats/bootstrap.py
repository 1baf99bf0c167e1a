"""Confidence intervals by drawing whole turns, or stretches of tokens, with replacement."""

import numpy as np

DRAWS = 2000
MIN_TURNS = 10
MIN_UNITS = 4


class Bootstrap:
    """Draws of the units of a trace, the same for every predictor: differences are paired.

    Routings of neighbouring tokens are correlated, so single routings are never drawn. Turns are
    drawn where at least ten have something scored, else stretches of tokens. With fewer than four
    stretches there is no interval.

    Parameters
    ----------
    turn : int32 [U]
        The turn of each unit (a stretch of tokens).
    seed : int
    """

    def __init__(self, turn: np.ndarray, seed: int):
        self._turn = turn
        self._seed = seed

    def _groups(self, scored: np.ndarray) -> np.ndarray | None:
        """Return the group that each scored unit is drawn with, int64; None for too few."""
        turns, group = np.unique(self._turn[scored], return_inverse=True)
        if len(turns) >= MIN_TURNS:
            return group
        n = int(np.count_nonzero(scored))
        return np.arange(n) if n >= MIN_UNITS else None

    def interval(
        self, hits: np.ndarray, slots: np.ndarray, against: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the 95 % interval of hits / slots of each column: low and high, NaN for none.

        Parameters
        ----------
        hits, slots : int [U, C]
            Counts of each unit, for C quantities drawn together.
        against : int [U, C], optional
            Hits of another predictor on the same slots: the interval of the difference of the two.
        """
        scored = np.asarray(slots.any(axis=1))
        none = np.full(slots.shape[1], np.nan)
        groups = self._groups(scored)
        if groups is None:
            return none, none.copy()
        hits_more = hits if against is None else hits - against
        n = int(groups.max()) + 1
        sums = np.zeros((2, n, slots.shape[1]))
        np.add.at(sums[0], groups, hits_more[scored])
        np.add.at(sums[1], groups, slots[scored])
        rng = np.random.default_rng(self._seed)
        rates = np.empty((DRAWS, slots.shape[1]))
        for start in range(0, DRAWS, 250):
            times_drawn = rng.multinomial(n, np.full(n, 1 / n), size=250).astype(float)
            of_slots = times_drawn @ sums[1]
            with np.errstate(invalid="ignore"):
                rates[start : start + 250] = (times_drawn @ sums[0]) / of_slots
        few = (sums[1] > 0).sum(axis=0) < MIN_UNITS
        low, high = np.nanquantile(np.where(few, 0, rates), [0.025, 0.975], axis=0)
        low[few] = high[few] = np.nan
        return low, high
