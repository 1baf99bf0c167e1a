"""Confidence intervals by drawing whole turns, or stretches of tokens, with replacement."""

from collections.abc import Sequence

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
        of_hits, of_slots = self._drawn(groups, [hits_more[scored], slots[scored]])
        with np.errstate(invalid="ignore"):
            rates = of_hits / of_slots
        few = _groups_with(groups, slots[scored]) < MIN_UNITS
        low, high = np.nanquantile(np.where(few, 0, rates), [0.025, 0.975], axis=0)
        low[few] = high[few] = np.nan
        return low, high

    def intervals_of_ratios(
        self, parts: np.ndarray, wholes: np.ndarray, scored: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the 95 % intervals of parts / wholes of each column, and of their mean over columns.

        Parameters
        ----------
        parts, wholes : int [U, C]
            Sums of each unit, which may be negative.
        scored : bool [U]
            The units that are drawn from.

        Returns
        -------
        low, high : float64 [C + 1]
            NaN for none; the last is that of the mean. A draw whose whole is not above 0 says nothing
            of its column, and of the mean.
        """
        groups = self._groups(scored)
        if groups is None:
            none = np.full(parts.shape[1] + 1, np.nan)
            return none, none.copy()
        of_parts, of_wholes = self._drawn(groups, [parts[scored], wholes[scored]])
        n_columns = parts.shape[1]
        ratios = np.full((DRAWS, n_columns + 1), np.nan)
        np.divide(of_parts, of_wholes, out=ratios[:, :-1], where=of_wholes > 0)
        ratios[:, -1] = ratios[:, :-1].mean(axis=1)
        low, high = np.full(n_columns + 1, np.nan), np.full(n_columns + 1, np.nan)
        known = ~np.isnan(ratios).all(axis=0)
        if known.any():
            low[known], high[known] = np.nanquantile(ratios[:, known], [0.025, 0.975], axis=0)
        return low, high

    def _drawn(self, groups: np.ndarray, quantities: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sums of each of `quantities` [U, C] over the groups of each draw, [DRAWS, C]."""
        n = int(groups.max()) + 1
        sums = [np.zeros((n, quantity.shape[1])) for quantity in quantities]
        for of_groups, quantity in zip(sums, quantities, strict=True):
            np.add.at(of_groups, groups, quantity)
        rng = np.random.default_rng(self._seed)
        drawn = [np.empty((DRAWS, of_groups.shape[1])) for of_groups in sums]
        for start in range(0, DRAWS, 250):
            times_drawn = rng.multinomial(n, np.full(n, 1 / n), size=250).astype(float)
            for of_draws, of_groups in zip(drawn, sums, strict=True):
                of_draws[start : start + 250] = times_drawn @ of_groups
        return drawn


def _groups_with(groups: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Return in how many groups each column of `slots` [U, C] has any, int64 [C]."""
    of_groups = np.zeros((int(groups.max()) + 1, slots.shape[1]))
    np.add.at(of_groups, groups, slots)
    return np.asarray((of_groups > 0).sum(axis=0))
