"""A line through points of which some lie far off: Huber's M-estimate.

In: arrays of x and y. Out: intercepts and slopes. Nothing here knows what they measure.
"""

import numpy as np

TUNING = 1.345  # 95 % efficient where the noise is normal
MAD_TO_SD = 1.4826  # of normal noise


def huber_line(
    x: np.ndarray,
    y: np.ndarray,
    tolerance: float = 1e-9,
    start: tuple[float, float] | None = None,
    most_rounds: int = 100,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Fit y = a + b · x by iteratively reweighted least squares, many sets of points at once.

    A set whose residuals' spread is `scale` weighs a point 1 up to a residual of 1.345 · scale, and
    less in proportion beyond. The scale is 1.4826 times the median absolute deviation of the
    residuals from their median, found again in each round.

    Parameters
    ----------
    x, y : float64 [..., T]
        Sets of T points; x of a set must not be constant.
    tolerance : float
        The rounds end when no fitted value moves by more than this share of the median y.
    start : (a, b), optional
        Where the rounds begin; with the line of least squares by default.
    most_rounds : int
    scale : float, optional
        The spread of the residuals, where it is known; it is not found again then, which takes longest.

    Returns
    -------
    a, b : float64 [...]

    References
    ----------
    P. J. Huber, "Robust Estimation of a Location Parameter", Annals of Mathematical Statistics 35(1),
    1964; for lines, P. J. Huber, "Robust Regression", Annals of Statistics 1(5), 1973.
    """
    if start is None:
        a, b = _weighted_line(x, y, np.ones_like(y))
    else:
        a, b = (np.full(y.shape[:-1], value) for value in start)
    enough = tolerance * max(float(np.median(np.abs(y))), 1e-300)
    widest = np.abs(x).max(axis=-1)
    for _ in range(most_rounds):
        residuals = y - a[..., None] - b[..., None] * x
        spread = spread_of(residuals) if scale is None else scale
        # Where half of the points lie on the line exactly, the others have no weight.
        limit = np.maximum(TUNING * spread, 1e-12 * enough)
        weights = np.minimum(1, limit / np.maximum(np.abs(residuals), limit))
        a_before, b_before = a, b
        a, b = _weighted_line(x, y, weights)
        moved = np.abs(a - a_before) + np.abs(b - b_before) * widest
        if np.all(moved <= enough):
            break
    return a, b


def spread_of(residuals: np.ndarray) -> np.ndarray:
    """Return 1.4826 times the median absolute deviation from the median, [..., 1] of [..., T]."""
    centre = np.median(residuals, axis=-1, keepdims=True)
    return np.asarray(MAD_TO_SD * np.median(np.abs(residuals - centre), axis=-1, keepdims=True))


def _weighted_line(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    total = weights.sum(axis=-1)
    mean_x = (weights * x).sum(axis=-1) / total
    mean_y = (weights * y).sum(axis=-1) / total
    from_mean = x - mean_x[..., None]
    b = (weights * from_mean * y).sum(axis=-1) / (weights * from_mean * from_mean).sum(axis=-1)
    return mean_y - b * mean_x, b
