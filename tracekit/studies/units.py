"""A run of a study over one trace: what a machine can do alone, cell by cell or as a whole.

In: a run, its traces, and what makes it differ from other units of the study. Out: its part of the
result table. Nothing here knows where a unit runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any, cast

import pandas as pd

from tracekit.analysis.closure import closures
from tracekit.arguments import as_list
from tracekit.figures import settings
from tracekit.policies import POLICIES, Policy, load_policies
from tracekit.policies.bound import PRICES
from tracekit.predictors import PREDICTORS, Horizon
from tracekit.registry import lent
from tracekit.replaying.prepare import Prepared, prepare
from tracekit.replaying.rows import Row
from tracekit.scoring import predict
from tracekit.studies.files import TraceFile
from tracekit.studies.spec import Run
from tracekit.trace import Trace
from tracekit.trace.errors import UsageError

# How long a fit took differs from run to run.
_NOT_REPRODUCIBLE = ("fit_seconds",)


@dataclass(frozen=True, eq=False)
class Part:
    """What a unit adds to the result of its study.

    Attributes
    ----------
    frame : DataFrame
    notes : list of str
    warnings : dict of str to list of str
        What is wrong with each trace, by its name in the study.
    """

    frame: pd.DataFrame
    notes: list[str]
    warnings: dict[str, list[str]]


@dataclass(frozen=True, eq=False)
class Unit:
    """One run of a study over one trace, with one seed or one set of parameters.

    Attributes
    ----------
    of : str
        The name of the trace in the study.
    trace, warm : Trace or TraceFile
        Opened, or where whoever runs the unit can open it.
    run : Run
    policies : list of str
        Those of the run that are replayed with this seed.
    params : mapping
    seed : int
    own : mapping of str to type
        The policies and predictors that the user named as ``module:Class``.
    """

    of: str
    trace: Trace | TraceFile
    warm: Trace | TraceFile | None
    run: Run
    policies: list[str]
    params: Mapping[str, Any]
    seed: int
    own: Mapping[str, type]

    @property
    def has_cells(self) -> bool:
        """Whether it is a replay, whose policies and budgets do not depend on each other."""
        return bool(self.policies) and not self.run.closures

    def key(self) -> dict[str, Any]:
        """Return what its figures depend on, besides the code."""
        run = asdict(self.run) | {"traces": None, "seeds": None, "params": None}
        return {
            **self._traces(),
            "run": run,
            "policies": self.policies,
            "params": dict(self.params),
            "seed": self.seed,
        }

    def cell_key(self, policy: Policy, budget: int) -> dict[str, Any]:
        """Return what the figures of one cell depend on, besides the code."""
        run = self.run
        return {
            **self._traces(),
            "bypass": run.bypass,
            "skip": run.skip,
            "in_slots": bool(run.cache_slots),
            # A policy that draws has the seed among its parameters; a predictor may draw too.
            "seed": self.seed if policy.needs_predictor else None,
            "policy": policy.name,
            "params": asdict(policy.params),
            "budget": budget,
        }

    def _traces(self) -> dict[str, str | None]:
        return {
            "trace": self.trace.digest,
            "warm": None if self.warm is None else self.warm.digest,
        }

    def prepared(self, trace: Trace, warm: Trace | None) -> Prepared:
        """Return the replay of a unit that has cells, before any of them has run."""
        run, cycle = self.run, trace.token_cycle_bytes  # a study has sizes in cycles
        cache_bytes = [round(cycles * cycle) for cycles in run.cache_cycles] or run.cache_bytes
        return self._prepared(trace, warm, cache_bytes)

    def _prepared(self, trace: Trace, warm: Trace | None, cache_bytes: Sequence[int]) -> Prepared:
        run = self.run
        with lent(self.own):
            return prepare(
                trace,
                self.policies,
                cache_mib=run.cache_mib or None,
                cache_fraction=run.cache_fraction or None,
                cache_bytes=cache_bytes or None,
                cache_slots=run.cache_slots or None,
                params=self.params,
                bypass=run.bypass,
                skip=run.skip,
                warm=warm,
                seed=self.seed,
            )

    def part(
        self, work: Prepared, by_run: list[list[Row]], trace: Trace, warm: Trace | None
    ) -> Part:
        """Return the part of a unit that has cells, from the rows of each of ``work.policies``."""
        result = work.result(by_run)
        frame = result.frame.drop(columns="label")
        frame["params"] = frame["params"].map(settings)
        frame = frame.assign(skip=self.run.skip, warm=self.run.warm)
        cycles = (frame["cache_bytes"] / trace.token_cycle_bytes).round(6)
        frame.insert(frame.columns.get_loc("cache_mib") + 1, "cache_cycles", cycles)
        stochastic = {policy.name for policy in work.policies if policy.stochastic}
        seeds = [self.seed if name in stochastic else None for name in frame["policy"]]
        frame["seed"] = pd.Series(seeds, frame.index, dtype=object)
        return self._part(frame, result.notes, trace, warm)

    def whole(self, trace: Trace, jobs: int | None) -> Part:
        """Score predictors, or rank policies: the part of a unit that has no cells."""
        with lent(self.own):
            frame, notes = self._ranked(trace) if self.run.closures else self._scored(trace, jobs)
        return self._part(frame, notes, trace)

    def _part(
        self, frame: pd.DataFrame, notes: Sequence[str], trace: Trace, warm: Trace | None = None
    ) -> Part:
        warnings = {self.of: list(trace.warnings)}
        if warm is not None:
            warnings[self.run.warm] = list(warm.warnings)
        return Part(
            frame.assign(trace=self.of), [f"{self.of}: {sentence}" for sentence in notes], warnings
        )

    def _scored(self, trace: Trace, jobs: int | None) -> tuple[pd.DataFrame, list[str]]:
        horizons = cast("list[Horizon]", self.run.horizon)  # `predict` refuses other texts
        result = predict(
            trace,
            self.run.predictors,
            horizons,
            self.run.named or None,
            per_layer=False,
            params=self.params,
            jobs=jobs,
        )
        frame = result.frame.drop(columns=list(_NOT_REPRODUCIBLE), errors="ignore")
        if self.params:
            frame = frame.assign(params=settings(self.params))
        return frame, result.notes

    def _ranked(self, trace: Trace) -> tuple[pd.DataFrame, list[str]]:
        run, cycle = self.run, trace.token_cycle_bytes
        cache_bytes = [round(cycles * cycle) for cycles in run.cache_cycles] or run.cache_bytes
        frame = closures(
            trace,
            load_policies(run.policies, run.params, self.seed),
            cache_mib=run.cache_mib or None,
            cache_fraction=run.cache_fraction or None,
            cache_bytes=list(cache_bytes) or None,
            bypass=run.bypass,
        )
        return frame.assign(params=frame["params"].map(settings)), frame.attrs["notes"]


def units_of(
    of: str, trace: Trace | TraceFile, warm: Trace | TraceFile | None, run: Run
) -> Iterator[Unit]:
    """Yield the units of one run of a study over one trace, in the order of the result table."""

    def unit(policies: list[str], params: Mapping[str, Any], seed: int) -> Unit:
        return Unit(of, trace, warm, run, policies, params, seed, own)

    own = own_classes(run)
    if run.predictors:
        for params in _combinations(run.params):
            yield unit([], dict(params), 0)
        return
    if run.closures:
        for seed in run.seeds[:1]:  # nothing is drawn twice
            yield unit(run.policies, run.params, seed)
        return
    given = {"bound.prices": PRICES, **run.params}
    draws = [name for name in run.policies if POLICIES.find(name).stochastic]
    for number, seed in enumerate(run.seeds):
        policies = draws if number else run.policies
        if policies:
            yield unit(policies, _of(policies, given) if number else given, seed)


def _combinations(params: Mapping[str, Any]) -> Iterator[Iterable[tuple[str, Any]]]:
    """Yield each combination of the values of `params`; one without any if there are none."""
    values = ([(name, value) for value in as_list(given)] for name, given in params.items())
    return product(*values)


def _of(policies: Sequence[str], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of `params` that are of `policies` or the bound, which any row is compared with."""
    owners = {*policies, *(POLICIES.find(name).name for name in policies), "bound"}
    return {name: value for name, value in params.items() if name.rpartition(".")[0] in owners}


def own_classes(run: Run) -> dict[str, type]:
    """Return what the run names as ``module:Class``, also among its parameters.

    Raises
    ------
    UsageError
        A policy or predictor of the run cannot be loaded.
    """
    found: dict[str, type] = {spec: POLICIES.find(spec) for spec in run.policies if ":" in spec}
    found |= {spec: PREDICTORS.find(spec) for spec in run.predictors if ":" in spec}
    for value in (each for values in run.params.values() for each in as_list(values)):
        spec = value.partition("@")[0] if isinstance(value, str) else ""
        for registry in (POLICIES, PREDICTORS) if ":" in spec else ():
            try:
                found[spec] = registry.find(spec)
            except UsageError:
                continue  # of the other kind, or no class at all: whoever takes it says so
    return found
