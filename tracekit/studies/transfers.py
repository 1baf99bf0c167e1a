"""Measured runs that predict each other: a fit to the tokens of one, given the bytes of another.

In: a table of runs, and one of their tokens. Out: a row for each pair, with what was predicted and what
was measured.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tracekit.figures import quoted
from tracekit.studies.find import measured_paths
from tracekit.studies.spec import MeasuredSpec, Study, Transfer
from tracekit.timing import Prediction, fit
from tracekit.trace.build import shown
from tracekit.trace.errors import TracekitError, UsageError

_OF_TOKENS = ("run", "wall_ms", "read_bytes")


@dataclass(frozen=True, eq=False)
class MeasuredRuns:
    """Measured runs: what is known of each, and its tokens.

    Attributes
    ----------
    runs : DataFrame
        A row for each run, by its name.
    tokens : dict of str to DataFrame
        The decoded tokens of each run, in order.
    facts : mapping
        Which column of `runs` has which fact.
    """

    runs: pd.DataFrame
    tokens: Mapping[str, pd.DataFrame]
    facts: Mapping[str, str]

    def facts_of(self, run: str, transfer: Transfer) -> dict[str, Any]:
        """Return what is known of a run, as `tracekit.timing.fit` takes it."""
        row = self.runs.loc[run]
        known = {fact: row[column] for fact, column in self.facts.items() if pd.notna(row[column])}
        if "lossy" in known:  # such as a threshold under which experts are left out
            known["lossy"] = bool(known["lossy"])
        known |= transfer.given
        return {fact: value for fact, value in known.items() if fact not in transfer.ignore}


def measured_runs(study: Study, folder: str | Path | None) -> dict[str, MeasuredRuns]:
    """Read the measured runs of a study.

    Raises
    ------
    TracekitError
        A table is not there, cannot be read or lacks a column; the sentence says which.
    """
    paths = measured_paths(study, folder)
    return {name: _read(study.measured[name], *each) for name, each in paths.items()}


def _read(spec: MeasuredSpec, runs: Path, tokens: Path) -> MeasuredRuns:
    of_runs = _table(runs, ("run", *spec.facts.values()))
    of_tokens = _table(tokens, _OF_TOKENS)
    by_run = {str(name): rows for name, rows in of_tokens.groupby("run", sort=False)}
    return MeasuredRuns(of_runs.drop_duplicates("run").set_index("run"), by_run, spec.facts)


def _table(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    try:
        table = pd.read_csv(path)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise TracekitError(f"{path} cannot be read as a table: {error}.") from error
    lacks = {*columns} - {*table}
    if lacks:
        raise TracekitError(f"{path} has no column {quoted(lacks)}; it has {quoted(table)}.")
    return table


def transferred(transfer: Transfer, measured: MeasuredRuns) -> pd.DataFrame:
    """Predict runs from the times of others, each given its bytes.

    How much memory stays free in a run is not known before it, so that of the predicted run is not used.

    Returns
    -------
    DataFrame
        One row per pair: ``transfer``, ``calibrated``, ``predicted`` (names), ``is_refused``,
        ``refusals``, what `Prediction` says of the typical and the mean token, ``measured_typical_ms``,
        ``measured_mean_ms``, and how far the prediction is off as a fraction without a sign,
        ``typical_off`` of the typical token and ``mean_tok_s_off`` of tokens a second on average;
        ``is_inside``: the measured typical token is within the interval, where ``has_interval``;
        ``is_at_least``: it takes at least what is said, where no more is.

    Raises
    ------
    UsageError
        A run is not in the tables.
    """
    for name in (*transfer.calibrated, *transfer.predicted):
        if name not in measured.runs.index or name not in measured.tokens:
            raise UsageError(
                f"The transfer {transfer.name!r} names a run {shown(name)}, which the tables of "
                f"{transfer.measured} do not have."
            )
    rows = [
        {"transfer": transfer.name, "calibrated": before, "predicted": after}
        | _pair(transfer, measured, before, after)
        for before in transfer.calibrated
        for after in transfer.predicted
        if after != before
    ]
    return pd.DataFrame(rows)


def _pair(transfer: Transfer, measured: MeasuredRuns, before: str, after: str) -> dict[str, Any]:
    """Return what the times of one run say of another, and what was measured."""
    tokens, others = measured.tokens[before], measured.tokens[after]
    facts = measured.facts_of(after, transfer)
    facts.pop("mem_floor_mib", None)
    try:
        fitted = fit(
            wall_ms=tokens["wall_ms"],
            read_bytes=tokens["read_bytes"],
            **measured.facts_of(before, transfer),
        )
    except UsageError as error:  # nothing can be fitted, which is a refusal too
        predicted = Prediction(refusals=(str(error),))
    else:
        predicted = fitted.predict(read_bytes=others["read_bytes"], **facts)
    low, high, least = predicted.low_ms, predicted.high_ms, predicted.at_least_ms
    typical, mean = float(np.median(others["wall_ms"])), float(others["wall_ms"].mean())
    return {
        "is_refused": predicted.typical_ms is None,
        "refusals": " ".join(predicted.refusals) or None,
        "typical_ms": predicted.typical_ms,
        "low_ms": predicted.low_ms,
        "high_ms": predicted.high_ms,
        "at_least_ms": predicted.at_least_ms,
        "mean_ms": predicted.mean_ms,
        "measured_typical_ms": typical,
        "measured_mean_ms": mean,
        "typical_off": _off(predicted.typical_ms, typical),
        "mean_tok_s_off": _off(mean, predicted.mean_ms),
        "has_interval": low is not None,
        "is_inside": None if low is None or high is None else low <= typical <= high,
        "is_at_least": None if least is None else typical >= least,
    }


def _off(value: float | None, other: float | None) -> float | None:
    """Return by which fraction of `other` a value differs from it."""
    return None if value is None or other is None else abs(value / other - 1)
