"""The kinds of plot that ``tracekit plot`` knows: what each shows, computes and draws."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit import analysis, plots
from tracekit.analysis.budget import DEFAULT_FRACTION
from tracekit.analysis.curves import POLICIES as CURVES
from tracekit.analysis.runs import RECORDED, read_by_default
from tracekit.figures import in_mib
from tracekit.policies import Policy, Retention, load_policies
from tracekit.predictors import PREDICTORS
from tracekit.routing.routers import Routers
from tracekit.scoring.usable import why_unusable
from tracekit.trace import Trace, UsageError

FALLBACK = "prev-token"  # a predictor that every trace can run


@dataclass(frozen=True)
class Choices:
    """What a user may choose of a plot; every kind reads the ones that concern it.

    Attributes
    ----------
    policies : list of str or Policy, or None
        None: the kind's own.
    params : mapping
        ``{"retention.predictor": ["oracle", …]}`` of the policies; several values are several
        variants.
    predictors : list of str or None
        None: the kind's own.
    cache_bytes : list of int or None
        Budgets; None: the recorded one, or a range for curves and gains.
    horizon, named : list of int or None
    seed : int
    jobs : int or None
    """

    policies: Sequence[str | Policy] | None = None
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    predictors: Sequence[str] | None = None
    cache_bytes: Sequence[int] | None = None
    horizon: Sequence[int] | None = None
    named: Sequence[int] | None = None
    seed: int = 0
    jobs: int | None = None

    def one_budget(self) -> int | None:
        """Return the only budget, for a plot that shows one.

        Raises
        ------
        UsageError
            Several were given.
        """
        return _only("cache budget", self.cache_bytes)

    def drawn(self, default: Sequence[str]) -> list[str | Policy]:
        """Return the policies to draw, one for each combination of parameters.

        Raises
        ------
        UsageError
            An unknown policy, or a parameter of one that is not drawn.
        """
        names = list(default if self.policies is None else self.policies)
        owners = {target: target.rpartition(".")[0] for target in self.params}
        for owner in owners.values():
            if owner not in names:
                raise UsageError(
                    f"--param is set for {owner!r}, which is not drawn here; name it in --policy."
                )
        policies: list[str | Policy] = []
        for name in names:
            if name == RECORDED:
                policies.append(name)
                continue
            own = {t: values for t, values in self.params.items() if owners[t] == name}
            policies += load_policies([name], own, self.seed)
        return policies

    def one_drawn(self, default: str) -> str | Policy:
        """Return the only policy, for a plot that shows one.

        Raises
        ------
        UsageError
            There are several, or as for `drawn`.
        """
        return _only("policy", self.drawn([default]))


def _only(what: str, values: Sequence[Any] | None) -> Any:
    if values is not None and len(values) != 1:
        raise UsageError(f"This plot shows one {what}, not {len(values)}.")
    return values[0] if values else None


@dataclass(frozen=True)
class Kind:
    """A kind of plot.

    Attributes
    ----------
    name, summary : str
    reads : tuple of str
        The names of the `Choices` that concern it, besides seed and jobs.
    compute : callable
        (trace, choices) → the DataFrame behind the plot.
    draw : callable
        (DataFrame, ax=…) → Axes.
    """

    name: str
    summary: str
    reads: tuple[str, ...]
    compute: Callable[[Trace, Choices], pd.DataFrame]
    draw: Callable[..., Axes]


def _gains(trace: Trace, choices: Choices) -> pd.DataFrame:
    notes = []
    if choices.policies is None and "retention.predictor" not in choices.params:
        reason = _lacks(trace, Retention.Params().predictor)
        if reason is not None:
            notes = [f"retention acts on {FALLBACK} here: {reason}"]
            params = {**choices.params, "retention.predictor": [FALLBACK]}
            choices = replace(choices, params=params)
    frame = analysis.hit_rate_gains(
        trace,
        choices.drawn([Retention.name]),
        cache_bytes=choices.cache_bytes,
        seed=choices.seed,
    )
    frame.attrs["notes"] = notes
    return frame


def _lacks(trace: Trace, predictor: str) -> str | None:
    """Return in one sentence why `predictor` cannot run on `trace`, or None if it can."""
    return why_unusable(trace, Routers(trace), PREDICTORS.find(predictor))


def _at_one_budget(
    compute: Callable[[Trace, Choices], pd.DataFrame],
) -> Callable[[Trace, Choices], pd.DataFrame]:
    """Make `compute` say which budget it took, where neither the user nor the trace names one."""

    def noted(trace: Trace, choices: Choices) -> pd.DataFrame:
        frame = compute(trace, choices)
        replayed = choices.policies is None or list(choices.policies) != [RECORDED]
        if replayed and choices.cache_bytes is None and trace.budget_bytes is None:
            budget = analysis.default_budget(trace)
            frame.attrs["notes"] = [
                f"The trace carries no cache budget: {100 * DEFAULT_FRACTION:g} % of the expert "
                f"bank, {in_mib(budget)}, is drawn as an example; --cache-mib sets another."
            ]
        return frame

    return noted


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "predictability",
            "slot accuracy of each predictor, layer by layer",
            ("predictors",),
            lambda trace, c: analysis.accuracy_by_layer(
                trace, c.predictors, seed=c.seed, jobs=c.jobs
            ),
            plots.plot_predictability,
        ),
        Kind(
            "horizon",
            "slot accuracy by how many layers ahead is predicted",
            ("predictors", "horizon"),
            lambda trace, c: analysis.accuracy_by_horizon(
                trace, c.predictors, c.horizon, seed=c.seed, jobs=c.jobs
            ),
            plots.plot_horizon,
        ),
        Kind(
            "recall",
            "selected experts that are named, by how many are named",
            ("predictors", "named"),
            lambda trace, c: analysis.recall_by_named(
                trace, c.predictors, c.named, seed=c.seed, jobs=c.jobs
            ),
            plots.plot_recall,
        ),
        Kind(
            "curves",
            "hit rate by cache budget, under the bound",
            ("policies", "params", "cache_bytes"),
            lambda trace, c: analysis.hit_rate_curves(
                trace, c.drawn(CURVES), c.cache_bytes, seed=c.seed, jobs=c.jobs
            ),
            plots.plot_curves,
        ),
        Kind(
            "gains",
            "points of hit rate that a policy gains over LRU, by cache budget",
            ("policies", "params", "cache_bytes"),
            _gains,
            plots.plot_gains,
        ),
        Kind(
            "read-bytes",
            "bytes that each decoded token reads, as it ran",
            ("policies", "params", "cache_bytes"),
            _at_one_budget(
                lambda trace, c: analysis.read_bytes_by_token(
                    trace, c.drawn(read_by_default(trace)), cache_bytes=c.one_budget()
                )
            ),
            plots.plot_read_bytes,
        ),
        Kind(
            "popularity",
            "how often each expert is selected, layer × expert",
            (),
            lambda trace, c: analysis.expert_popularity(trace),
            plots.plot_popularity,
        ),
        Kind(
            "popularity-sorted",
            "the same, each layer's favourites first",
            (),
            lambda trace, c: analysis.expert_popularity(trace),
            lambda data, **style: plots.plot_popularity(data, by="rank", **style),
        ),
        Kind(
            "reuse",
            "reuse distance in bytes, with the budget drawn in",
            ("cache_bytes",),
            _at_one_budget(
                lambda trace, c: analysis.reuse_distance(trace, cache_bytes=c.one_budget())
            ),
            plots.plot_reuse,
        ),
        Kind(
            "reuse-tokens",
            "reuse distance in tokens",
            (),
            lambda trace, c: analysis.reuse_distance(trace, unit="tokens"),
            plots.plot_reuse,
        ),
        Kind(
            "working-set",
            "distinct experts touched, since the start and by any n tokens",
            (),
            lambda trace, c: analysis.working_set(trace),
            plots.plot_working_set,
        ),
        Kind(
            "overlap",
            "experts that routings share, by lag in tokens and in layers",
            (),
            lambda trace, c: analysis.overlap_by_lag(trace),
            plots.plot_overlap,
        ),
        Kind(
            "concentration",
            "routing entropy and top-1 share, layer by layer",
            (),
            lambda trace, c: analysis.routing_concentration(trace),
            plots.plot_concentration,
        ),
        Kind(
            "timeline",
            "token × layer: hit, miss or prefetched under one policy (or as recorded)",
            ("policies", "params", "cache_bytes"),
            _at_one_budget(
                lambda trace, c: analysis.residency_timeline(
                    trace, c.one_drawn("lru"), cache_bytes=c.one_budget()
                )
            ),
            plots.plot_timeline,
        ),
    )
}


def find_kind(name: str) -> Kind:
    """Return the kind called `name`.

    Raises
    ------
    UsageError
        There is none; the sentence names the nearest.
    """
    if name in KINDS:
        return KINDS[name]
    near = difflib.get_close_matches(name, KINDS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(KINDS)}."
    raise UsageError(f"No plot is called {name!r}; {hint}")


def caption(trace: Trace) -> str:
    """Return what tells pictures of two traces apart: the names of the model and of the trace."""
    names = (trace.facts.model.name, Path(trace.name).absolute().name)
    return ", ".join(_shortened(name) for name in names)


def _shortened(name: str, most: int = 60) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
