"""Ridge regression from sums that add up, so that a trace larger than memory can be fitted."""

import numpy as np


class RidgeSums:
    """Sums over rows of features x and targets y: all that a ridge regression needs.

    Sums of separate rows add up, and those of held-out rows can be left out afterwards.

    Parameters
    ----------
    n_features, n_targets : int
    """

    def __init__(self, n_features: int, n_targets: int):
        self.rows = 0
        self._products = np.zeros((n_features + 1, n_features + 1), np.float32)
        self._targets = np.zeros((n_features + 1, n_targets), np.float32)

    @staticmethod
    def size_bytes(n_features: int, n_targets: int) -> int:
        """Return how much memory the sums take."""
        return 4 * (n_features + 1) * (n_features + 1 + n_targets)

    def add(self, features: list[np.ndarray], targets: np.ndarray) -> None:
        """Take in T rows: blocks of features [T, …] side by side, and targets [T, n_targets]."""
        ones = np.ones((len(targets), 1), np.float32)
        x = np.concatenate([*features, ones], axis=1)
        self._products += x.T @ x
        self._targets += x.T @ targets
        self.rows += len(targets)

    def merge(self, other: "RidgeSums") -> None:
        """Add the rows of `other`."""
        self._products += other._products
        self._targets += other._targets
        self.rows += other.rows

    @property
    def feature_means(self) -> np.ndarray:
        """Mean of each feature, float32 [n_features]."""
        return self._products[:-1, -1] / np.float32(self.rows)

    def solve(self, strength: float) -> tuple[np.ndarray, np.ndarray]:
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
