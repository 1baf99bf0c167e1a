"""Ridge regression from sums over rows, so that a trace larger than memory can be fitted."""

from typing import Self

import numpy as np

# Penalties that are tried; a fit on few rows needs a strong one.
STRENGTHS = (0.03, 0.3, 3.0)

Fit = tuple[np.ndarray, np.ndarray]

# What the sums of all groups of turns may take in memory, and their solving in multiplications.
_SUMS_BYTES = 512 << 20
_SOLVING = 10**10


class RidgeSums:
    """The sums over rows of features x and targets y that a ridge regression needs.

    Sums of separate rows add up, and those of held-out rows can be left out afterwards.

    Parameters
    ----------
    n_features, n_targets : int
    """

    def __init__(self, n_features: int, n_targets: int):
        self.rows = 0
        self._squares = 0.0
        self._products = np.zeros((n_features + 1, n_features + 1), np.float32)
        self._targets = np.zeros((n_features + 1, n_targets), np.float32)

    def add(self, features: list[np.ndarray], targets: np.ndarray) -> None:
        """Take in T rows: blocks of features [T, …] side by side, and targets [T, n_targets]."""
        ones = np.ones((len(targets), 1), np.float32)
        x = np.concatenate([*features, ones], axis=1)
        self._products += x.T @ x
        self._targets += x.T @ targets
        self._squares += float(np.square(targets).sum(dtype=np.float64))
        self.rows += len(targets)

    def __iadd__(self, other: Self) -> Self:
        """Add the rows of `other`."""
        self._products += other._products
        self._targets += other._targets
        self._squares += other._squares
        self.rows += other.rows
        return self

    @property
    def feature_means(self) -> np.ndarray:
        """Mean of each feature, float32 [n_features]."""
        means: np.ndarray = self._products[:-1, -1] / np.float32(self.rows)
        return means

    def error(self, fit: Fit | None) -> float:
        """Return the summed squared error of a fit on these rows; without a fit, of predicting 0."""
        if fit is None:
            return self._squares
        w = np.concatenate([fit[0], fit[1][None]]).astype(np.float64)
        explained = 2 * np.sum(w * self._targets) - np.sum(w * (self._products @ w))
        return self._squares - float(explained)

    def solve(self, strength: float) -> Fit:
        """Return the coefficients [n_features, n_targets] and intercepts [n_targets], float32.

        The penalty is `strength` × rows on the squared coefficients of standardised features; the
        intercept is free. A feature that never varies gets the coefficient 0.
        """
        n = self.rows
        products = self._products.astype(np.float64)
        targets = self._targets.astype(np.float64)
        mean, target_mean = products[:-1, -1] / n, targets[-1] / n
        covariance = products[:-1, :-1] - n * np.outer(mean, mean)
        cross = targets[:-1] - n * np.outer(mean, target_mean)
        spread = np.sqrt(np.maximum(covariance.diagonal(), 0) / n)
        scale = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 1e-6)
        standardised = covariance * np.outer(scale, scale)
        standardised.flat[:: len(mean) + 1] += strength * n
        coefficients = np.linalg.solve(standardised, cross * scale[:, None]) * scale[:, None]
        intercepts = target_mean - mean @ coefficients
        return coefficients.astype(np.float32), intercepts.astype(np.float32)


def best_fit(one: RidgeSums, other: RidgeSums) -> Fit | None:
    """Return the fit on all rows with the penalty that does best on rows it was not fitted on.

    Each half of the rows is fitted and judged on the other half.

    Parameters
    ----------
    one, other : RidgeSums
        Of different rows, such as different turns. `one` then holds the sums of all.

    Returns
    -------
    tuple of numpy.ndarray, or None
        Coefficients and intercepts; None if predicting 0 does at least as well as every fit.
    """
    best, least = None, one.error(None) + other.error(None)
    for strength in STRENGTHS:
        error = other.error(one.solve(strength)) + one.error(other.solve(strength))
        if error < least:
            best, least = strength, error
    one += other
    return None if best is None else one.solve(best)


def affordable_groups(n_features: int, n_targets: int, n_fits: int, copies: int = 1) -> int:
    """Return how many groups of turns can be held out one after the other: from 2 to 32.

    Parameters
    ----------
    n_features, n_targets : int
    n_fits : int
        Fits of a group, one for each layer.
    copies : int
        Sums in memory for each fit.
    """
    by_memory = _SUMS_BYTES // (4 * n_fits * copies * n_features * (n_features + n_targets))
    by_work = _SOLVING // (n_fits * n_features**3)
    return int(np.clip(min(by_memory, by_work), 2, 32))
