"""What a study is: traces, runs over them, and claims about the result; read from TOML."""

import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from tracekit.figures import quoted
from tracekit.trace.errors import UsageError
from tracekit.trace.facts import fits

T = TypeVar("T")

UNITS = {"percent": 100.0, "MiB": 1 / 2**20}
_PARTS = {
    "title": str,
    "about": str,
    "traces": dict[str, dict[str, Any]],
    "run": list[dict[str, Any]],
    "claim": list[dict[str, Any]],
}
COMPARISONS = ("equals", "at_least", "at_most", "above", "below")


@dataclass(frozen=True)
class TraceSpec:
    """A trace of a study: ``[traces.NAME]``.

    Attributes
    ----------
    name : str
        What runs and claims call it.
    file : str
        ``bundled:NAME`` for one that comes with tracekit; else a path, relative to the study, or
        to the folder of traces where `source` says that it has to be fetched.
    source : str or None
        Where to get it.
    """

    name: str
    file: str
    source: str | None = None


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
        Budgets; fractions are of the expert bank, cycles of the bytes one token touches.
    seeds : list of int
        Every policy that draws random numbers runs once with each.
    horizon, named : list of int
        Layers ahead; numbers of experts that predictors may name, besides k.
    params : mapping
        ``"drop-cold.frac" = [0.75, 1.0]``: every combination is a row.
    """

    traces: list[str] = field(default_factory=list)
    policies: list[str] = field(default_factory=list)
    predictors: list[str] = field(default_factory=list)
    cache_mib: list[float] = field(default_factory=list)
    cache_bytes: list[int] = field(default_factory=list)
    cache_fraction: list[float] = field(default_factory=list)
    cache_cycles: list[float] = field(default_factory=list)
    seeds: list[int] = field(default_factory=lambda: [0])
    horizon: list[int] = field(default_factory=lambda: [1])
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
    unit : str or None
        ``"percent"`` of a rate, ``"MiB"`` of bytes: what the figure is compared and printed in.
    equals : float or list of float or None
        One value for all rows, or one for each in the order of the result.
    decimals : int or None
        Figures are rounded to so many decimals, to be printed and to be equal.
    within : float or None
        How far figures may be from those they should equal.
    at_least, at_most, above, below : float or None
    """

    says: str
    figure: str
    of: Mapping[str, Any]
    minus: Mapping[str, Any] | None = None
    over: Mapping[str, Any] | None = None
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
    """

    path: Path
    title: str
    about: str
    traces: dict[str, TraceSpec]
    runs: list[Run]
    claims: list[Claim]

    @property
    def result_path(self) -> Path:
        """Where the result table stands."""
        return self.path.with_suffix(".csv")


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
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not a study: {error}.") from error
    unknown = set(data) - set(_PARTS)
    if unknown:
        raise UsageError(f"{path}: a study has no {quoted(unknown)}.")
    for part in ("title", "traces", "run"):
        if part not in data:
            raise UsageError(f"{path}: a study needs {part!r}.")
    for part, hint in _PARTS.items():
        if part in data:
            _check_type(f"{path}: {part}", data[part], hint)

    traces = {
        name: _build(TraceSpec, {"name": name, **entry}, f"{path}: [traces.{name}]")
        for name, entry in data["traces"].items()
    }
    runs = [
        _build(Run, entry, f"{path}: [[run]] {number}")
        for number, entry in enumerate(data["run"], 1)
    ]
    claims = [
        _build(Claim, entry, f"{path}: [[claim]] {number}")
        for number, entry in enumerate(data.get("claim", []), 1)
    ]
    for number, run in enumerate(runs, 1):
        _check_run(run, traces, f"{path}: [[run]] {number}")
    for number, claim in enumerate(claims, 1):
        _check_claim(claim, f"{path}: [[claim]] {number}")
    return Study(path, data["title"], data.get("about", "").strip(), traces, runs, claims)


def _build(cls: type[T], entry: Mapping[str, Any], where: str) -> T:
    known = {f.name: f for f in fields(cls)}
    unknown = set(entry) - set(known)
    if unknown:
        raise UsageError(f"{where} has no {quoted(unknown)}; it may have {quoted(known)}.")
    missing = [
        name
        for name, f in known.items()
        if f.default is MISSING and f.default_factory is MISSING and name not in entry
    ]
    if missing:
        raise UsageError(f"{where} needs {quoted(missing)}.")
    hints = get_type_hints(cls)
    for name, value in entry.items():
        _check_type(f"{where}: {name}", value, hints[name])
    return cls(**entry)


def _check_type(what: str, value: Any, hint: Any) -> None:
    if not fits(value, hint):
        wanted = hint.__name__ if isinstance(hint, type) and not get_args(hint) else hint
        raise UsageError(f"{what} = {str(value)[:60]!r} is not of type {wanted}; correct it.")


def _check_run(run: Run, traces: Mapping[str, TraceSpec], where: str) -> None:
    for name in run.traces:
        if name not in traces:
            raise UsageError(f"{where} names a trace {name!r}; there are {quoted(traces)}.")
    if bool(run.policies) == bool(run.predictors):
        raise UsageError(f"{where} needs either policies or predictors.")
    given = [
        name
        for name in ("cache_mib", "cache_bytes", "cache_fraction", "cache_cycles")
        if getattr(run, name)
    ]
    if len(given) != (1 if run.policies else 0):
        raise UsageError(
            f"{where}: policies need budgets in one unit (cache_mib, cache_bytes, cache_fraction "
            "or cache_cycles), predictors none."
        )


def _check_claim(claim: Claim, where: str) -> None:
    if all(getattr(claim, name) is None for name in COMPARISONS):
        raise UsageError(f"{where} claims nothing; it needs one of {quoted(COMPARISONS)}.")
    if claim.unit not in (None, *UNITS):
        raise UsageError(f"{where} has no unit {claim.unit!r}; there are {quoted(UNITS)}.")
    if claim.decimals is not None and claim.decimals < 0:
        raise UsageError(f"{where}: decimals = {claim.decimals} must be 0 or more.")
    if claim.minus is not None and claim.over is not None:
        raise UsageError(f"{where} has both minus and over; it may have one.")
