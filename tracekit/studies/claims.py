"""Decide a claim: take its figures from the result and compare them with its limits.

In: a claim and the table of a study's result. Out: whether the claim holds, with the figures. This
module runs nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from tracekit.studies.spec import UNITS, Claim
from tracekit.trace.build import shown
from tracekit.trace.errors import UsageError

# Rows that are compared with each other agree in these columns, unless the claim names them.
CONTEXT = ("trace", "cache_bytes", "bypass", "skip", "warm", "horizon", "seed")


@dataclass(frozen=True)
class Verdict:
    """A claim, whether it holds, and the figures that decide it.

    Attributes
    ----------
    claim : Claim
    holds : bool
    figures : float64 [rows]
        One for each row that the claim is about, in its unit; one in all if it takes their median or mean.
    summary : str
        The figures in words: ``"44.1 % to 61.9 % (5 rows)"``.
    """

    claim: Claim
    holds: bool
    figures: np.ndarray
    summary: str

    def __str__(self) -> str:
        return f"{'holds' if self.holds else 'does not hold':<15}{self.claim.says}: {self.summary}"


def decide(claim: Claim, result: pd.DataFrame) -> Verdict:
    """Test `claim` on the rows of `result`.

    Raises
    ------
    UsageError
        The claim names a column that the result lacks, or is about no row, or does not compare
        each row with exactly one other.
    """
    rows = _select(claim, result, claim.of)
    figures = _column(claim, rows)
    if claim.minus is not None:
        figures = figures - _partners(claim, rows, result, claim.minus)
    if claim.over is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            figures = figures / _partners(claim, rows, result, claim.over)
    if claim.unit is not None:
        figures = UNITS[claim.unit] * figures
    n_rows = len(figures)
    if claim.take is not None:
        taken = np.median(figures) if claim.take == "median" else np.mean(figures)
        figures = np.array([taken])
    failed = ~_within_limits(claim, figures)
    summary = _in_words(claim, figures, failed)
    if claim.take is not None:
        summary = f"{claim.take} {summary} of {n_rows} rows"
    return Verdict(claim, not failed.any(), figures, summary)


def _select(claim: Claim, result: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows that have the values of `columns`."""
    is_meant = np.ones(len(result), bool)
    for column, wanted in columns.items():
        if column not in result:
            raise UsageError(
                f"The claim {claim.says!r} names a column {shown(column)}, not in its result."
            )
        values = wanted if isinstance(wanted, list) else [wanted]
        is_meant &= result[column].isin(values).to_numpy()
    if not is_meant.any():
        raise UsageError(
            f"The claim {claim.says!r} is about no row of its result: {shown(dict(columns))}."
        )
    return result[is_meant]


def _column(claim: Claim, rows: pd.DataFrame) -> np.ndarray:
    if claim.figure not in rows:
        raise UsageError(
            f"The claim {claim.says!r} names a figure {shown(claim.figure)}, not in its result."
        )
    try:
        return np.asarray(rows[claim.figure].to_numpy(np.float64))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The claim {claim.says!r} is about {shown(claim.figure)}, which is no number."
        ) from error


def _partners(
    claim: Claim, rows: pd.DataFrame, result: pd.DataFrame, change: Mapping[str, Any]
) -> np.ndarray:
    """Return the figure that each of `rows` is compared with: of the row that differs in `change`."""
    candidates = _select(claim, result, change)
    same = [name for name in CONTEXT if name in result and name not in change]
    figures = []
    for _, row in rows.iterrows():
        is_partner = np.ones(len(candidates), bool)
        for name in same:
            # A deterministic policy has no seed: its row is compared with every seed's row.
            values = candidates[name]
            is_partner &= ((values == row[name]) | values.isna() | pd.isna(row[name])).to_numpy()
        if is_partner.sum() != 1:
            raise UsageError(
                f"The claim {claim.says!r} compares a row with {is_partner.sum()} rows of "
                f"{shown(dict(change))}; it must be one."
            )
        figures.append(float(candidates.loc[is_partner, claim.figure].iloc[0]))
    return np.array(figures)


def _within_limits(claim: Claim, figures: np.ndarray) -> np.ndarray:
    """Return which figures are within every limit, bool [rows]; a missing one (NaN) is not."""
    is_within: np.ndarray = ~np.isnan(figures)
    if claim.equals is not None:
        expected = np.asarray(claim.equals, np.float64)
        if expected.ndim and expected.shape != figures.shape:
            raise UsageError(
                f"The claim {claim.says!r} gives {len(expected)} values for {len(figures)} rows."
            )
        rounded = figures if claim.decimals is None else figures.round(claim.decimals)
        is_within &= np.isclose(rounded, expected, rtol=0, atol=claim.within or 1e-9)
    for limit, test in (
        (claim.at_least, np.greater_equal),
        (claim.at_most, np.less_equal),
        (claim.above, np.greater),
        (claim.below, np.less),
    ):
        if limit is not None:
            is_within &= test(figures, limit)
    return is_within


def _in_words(claim: Claim, figures: np.ndarray, failed: np.ndarray) -> str:
    """Put figures into words: their range, and the first that is not what it should equal."""
    unit = {None: "", "percent": " %", "MiB": " MiB"}[claim.unit]
    if claim.unit == "percent" and claim.minus is not None:
        unit = " points"
    digits = 2 if claim.decimals is None else claim.decimals

    def text(value: float) -> str:
        large = abs(value) >= 1000 and claim.decimals is None
        return f"{value:,.0f}{unit}" if large else f"{value:.{digits}f}{unit}"

    if np.isnan(figures).all():
        return "there is no figure"
    low, high = text(np.nanmin(figures)), text(np.nanmax(figures))
    words = low if low == high else f"{low} to {high}"
    if len(figures) > 1:
        words += f" ({len(figures)} rows"
        words += f", {failed.sum()} of them against it)" if failed.any() else ")"
    if failed.any() and isinstance(claim.equals, list):
        first = int(failed.argmax())
        words += f"; row {first + 1} is {text(figures[first])}, not {text(claim.equals[first])}"
    return words
