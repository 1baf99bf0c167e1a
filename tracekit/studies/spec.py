"""What a study is: traces, runs over them, and claims about the result.

In: a TOML file. Out: a `Study` whose values are of their types and fit together. No trace is opened
here, and nothing is run.
"""

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from tracekit.figures import quoted
from tracekit.timing.facts import NAMES as FACTS
from tracekit.trace.build import Dataclass, build, shown
from tracekit.trace.errors import UsageError

T = TypeVar("T", bound=Dataclass)

TAKES = ("median", "mean")
UNITS = {"percent": 100.0, "MiB": 1 / 2**20}
MOST_DECIMALS = 15  # a float has no more
COMPARISONS = ("equals", "at_least", "at_most", "above", "below")
BUDGETS = ("cache_mib", "cache_bytes", "cache_fraction", "cache_cycles", "cache_slots")


@dataclass(frozen=True)
class TraceSpec:
    """A trace of a study: ``[traces.NAME]``.

    Attributes
    ----------
    name : str
        What runs and claims call it.
    file : str
        ``bundled:NAME`` for a trace that comes with tracekit. Otherwise a path, relative to the
        study; or, if there is a `source`, relative to the folder of fetched traces.
    source : str or None
        Where to get a trace that has to be fetched.
    """

    name: str
    file: str
    source: str | None = None


@dataclass(frozen=True)
class MeasuredSpec:
    """Measured runs of which a study has the times, and no traces: ``[measured.NAME]``.

    Attributes
    ----------
    name : str
        What transfers call them.
    runs : str
        A table with a row for each run, its name in the column ``run``; as `TraceSpec.file`.
    tokens : str
        A table with a row for each decoded token, in order: ``run``, ``wall_ms``, ``read_bytes``.
    source : str or None
        Where to get both, if they have to be fetched.
    facts : mapping
        Which column of `runs` has which fact that `tracekit.timing.fit` takes: ``lanes = "io_lanes"``.
    """

    name: str
    runs: str
    tokens: str
    source: str | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Transfer:
    """Times of measured runs that are carried over to others, given their bytes: ``[[transfer]]``.

    Attributes
    ----------
    name : str
        What claims call it.
    measured : str
        Name of the measured runs.
    calibrated, predicted : list of str
        Each of the first predicts each of the second, and none itself.
    given : mapping
        Facts of all these runs that the table does not have: ``ram_mib = 11366``.
    ignore : list of str
        Facts that are not compared.
    """

    name: str
    measured: str
    calibrated: list[str]
    predicted: list[str]
    given: Mapping[str, Any] = field(default_factory=dict)
    ignore: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """One replay of policies over budgets, or one scoring of predictors: ``[[run]]``.

    Attributes
    ----------
    traces : list of str
        Names of traces; all of the study's by default.
    policies : list of str
        Cache policies, replayed at every budget.
    predictors : list of str
        Predictors, scored at every horizon.
    cache_mib, cache_bytes, cache_fraction, cache_cycles : list of float
        Budgets, in one of these units: a fraction of the expert bank, or a multiple of the bytes
        that one token touches.
    cache_slots : list of int
        Budgets in experts of every MoE layer, as with ``tracekit replay --cache-slots``.
    bypass : bool
        The engine may drop at once what it has just used, as with ``tracekit replay --bypass``.
    skip : int
        Decoded tokens at the beginning of each turn that do not count, as with ``--skip``.
    warm : str
        Name of a trace that is replayed first and does not count, as with ``--warm``. The run then
        names its other traces.
    closures : bool
        Rank the policies: each row says how much of the way from LRU to Belady its policy closes, with
        intervals (`tracekit.analysis.closures`), instead of the other figures of a replay.
    seeds : list of int
        A policy that draws random numbers runs once with each seed.
    horizon, named : list of int
        Layers ahead, or ``"token"``: before the token has begun; numbers of experts that predictors may name, besides k.
    params : mapping
        ``"drop-cold.frac" = [0.75, 1.0]``, ``"recall.history" = [100, 1000]``: every combination is a
        row. The bound takes 100 price
        iterations, if ``"bound.prices"`` does not say otherwise.
    """

    traces: list[str] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)
    predictors: list[str] = field(default_factory=list)
    cache_mib: list[float] = field(default_factory=list)
    cache_bytes: list[int] = field(default_factory=list)
    cache_fraction: list[float] = field(default_factory=list)
    cache_cycles: list[float] = field(default_factory=list)
    cache_slots: list[int] = field(default_factory=list)
    bypass: bool = False
    closures: bool = False
    skip: int = 0
    warm: str = ""
    seeds: list[int] = field(default_factory=lambda: [0])
    horizon: list[int | str] = field(default_factory=lambda: [1])
    named: list[int] = field(default_factory=list)
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A sentence about figures of the result, and the test that decides it: ``[[claim]]``.

    Attributes
    ----------
    says : str
        The sentence.
    figure : str
        A column of the result.
    of : mapping
        Which rows: column = value, or a list of values. The claim is about every one of them.
    minus, over : mapping or None
        Compare each row with the row that differs from it in these columns, by difference or by
        ratio.
    take : str or None
        ``"median"`` or ``"mean"``: the claim is about that of all these figures, and not about each.
    unit : str or None
        In which the figure is compared and printed: ``"percent"`` for a rate, ``"MiB"`` for bytes.
    equals : float or list of float or None
        One value for all rows, or one for each in the order of the result.
    decimals : int or None
        Figures are printed, and compared for equality, with so many decimals.
    within : float or None
        How far figures may be from `equals`.
    at_least, at_most, above, below : float or None
    """

    says: str
    figure: str
    of: Mapping[str, Any]
    minus: Mapping[str, Any] | None = None
    over: Mapping[str, Any] | None = None
    take: str | None = None
    unit: str | None = None
    equals: float | list[float] | None = None
    decimals: int | None = None
    within: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None


@dataclass(frozen=True)
class Study:
    """A question that anyone can ask again with one command.

    Attributes
    ----------
    path : Path
        The TOML file; the result stands beside it, ``.csv`` for ``.toml``.
    title, about : str
    traces : dict of str to TraceSpec
    runs : list of Run
    claims : list of Claim
    measured : dict of str to MeasuredSpec
    transfers : list of Transfer
    """

    path: Path
    title: str
    about: str
    traces: dict[str, TraceSpec]
    runs: list[Run]
    claims: list[Claim]
    measured: dict[str, MeasuredSpec] = field(default_factory=dict)
    transfers: list[Transfer] = field(default_factory=list)

    @property
    def result_path(self) -> Path:
        """Where the result table stands."""
        return self.path.with_suffix(".csv")

    @property
    def finished_path(self) -> Path:
        """Where finished work is kept."""
        return self.path.with_suffix(".finished.jsonl")


def read_study(path: str | Path) -> Study:
    """Read a study.

    Raises
    ------
    UsageError
        The file is not TOML, lacks a part, or holds a key that no study has.
    OSError
        The file cannot be read.
    """
    path = Path(path)
    document = _read(_Document, _parsed(path), str(path), "a study")
    traces = {
        name: _read(TraceSpec, {"name": name, **entry}, f"{path}: [traces.{name}]")
        for name, entry in document.traces.items()
    }
    measured = {
        name: _read(MeasuredSpec, {"name": name, **entry}, f"{path}: [measured.{name}]")
        for name, entry in document.measured.items()
    }
    runs, claims, transfers = [], [], []
    for number, entry in enumerate(document.run, 1):
        where = f"{path}: [[run]] {number}"
        runs.append(_read(Run, entry, where))
        _check_run(runs[-1], traces, where)
    for number, entry in enumerate(document.transfer, 1):
        where = f"{path}: [[transfer]] {number}"
        transfers.append(_read(Transfer, entry, where))
        _check_transfer(transfers[-1], measured, where)
    for number, entry in enumerate(document.claim, 1):
        where = f"{path}: [[claim]] {number}"
        claims.append(_read(Claim, entry, where))
        _check_claim(claims[-1], where)
    about = document.about.strip()
    return Study(path, document.title, about, traces, runs, claims, measured, transfers)


@dataclass(frozen=True)
class _Document:
    """The file of a study, its tables not read yet."""

    title: str
    traces: dict[str, dict[str, Any]] = field(default_factory=dict)
    run: list[dict[str, Any]] = field(default_factory=list)
    measured: dict[str, dict[str, Any]] = field(default_factory=dict)
    transfer: list[dict[str, Any]] = field(default_factory=list)
    claim: list[dict[str, Any]] = field(default_factory=list)
    about: str = ""


def _parsed(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
        raise UsageError(f"{path} is a folder, pipe or device; name the TOML file of a study.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a study: {error}.") from error
    except ValueError as error:  # Python reads no whole number of more than 4,300 digits
        raise UsageError(f"{path} is not a study: a number has too many digits.") from error
    except RecursionError as error:
        raise UsageError(f"{path} is not a study: it is nested too deeply.") from error


def _read(cls: type[T], entry: Mapping[str, Any], where: str, called: str | None = None) -> T:
    """Read a table of the file; `called` is what the sentence about an unknown key calls it."""
    known = [each.name for each in fields(cls)]
    unknown = set(entry) - set(known)
    if unknown:
        place = where if called is None else f"{where}: {called}"
        raise UsageError(f"{place} has no {quoted(unknown)}; it may have {quoted(known)}.")
    return build(cls, entry, where, UsageError)


def _check_run(run: Run, traces: Collection[str], where: str) -> None:
    for name in filter(None, [*run.traces, run.warm]):
        if name not in traces:
            raise UsageError(f"{where} names a trace {shown(name)}; there are {quoted(traces)}.")
    if run.warm in (run.traces or traces):
        raise UsageError(
            f"{where} warms up on {shown(run.warm)} and replays it too; name its other traces."
        )
    if bool(run.policies) == bool(run.predictors):
        raise UsageError(f"{where} needs either policies or predictors.")
    for name in ("skip", "warm", "cache_slots"):
        if run.closures and getattr(run, name):
            raise UsageError(
                f"{where} ranks policies (closures), which takes no {name}; leave it out."
            )
    for name in ("bypass", "skip", "warm", "closures"):
        if getattr(run, name) and run.predictors:
            raise UsageError(
                f"{where} scores predictors, and {name} is for policies; leave it out."
            )
    n_given = sum(bool(getattr(run, name)) for name in BUDGETS)
    if n_given != (1 if run.policies else 0):
        raise UsageError(
            f"{where}: policies need budgets in one unit ({', '.join(BUDGETS[:-1])} or "
            f"{BUDGETS[-1]}), predictors none."
        )


def _check_transfer(transfer: Transfer, measured: Collection[str], where: str) -> None:
    if transfer.measured not in measured:
        raise UsageError(
            f"{where} names measured runs {shown(transfer.measured)}; there are {quoted(measured)}."
        )
    unknown = {*transfer.given, *transfer.ignore} - {*FACTS}
    if unknown:
        raise UsageError(f"{where} has no fact {quoted(unknown)}; it may have {quoted(FACTS)}.")


def _check_claim(claim: Claim, where: str) -> None:
    if all(getattr(claim, name) is None for name in COMPARISONS):
        raise UsageError(f"{where} claims nothing; it needs one of {quoted(COMPARISONS)}.")
    if claim.unit not in (None, *UNITS):
        raise UsageError(f"{where} has no unit {shown(claim.unit)}; there are {quoted(UNITS)}.")
    if claim.take not in (None, *TAKES):
        raise UsageError(f"{where} cannot take {shown(claim.take)}; it may take {quoted(TAKES)}.")
    if claim.decimals is not None and not 0 <= claim.decimals <= MOST_DECIMALS:
        raise UsageError(
            f"{where}: decimals = {shown(claim.decimals)} must be from 0 to {MOST_DECIMALS}."
        )
    if claim.minus is not None and claim.over is not None:
        raise UsageError(f"{where} has both minus and over; it may have one.")
