"""The kinds of plot that ``tracekit plot`` knows: what each shows, computes and draws."""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit import analysis, plots
from tracekit.policies import Policy
from tracekit.trace import Trace, UsageError


@dataclass(frozen=True)
class Choices:
    """What a user may choose of a plot; every kind reads the ones that concern it.

    Attributes
    ----------
    policies : list of str or Policy, or None
        None: the kind's own.
    predictors : list of str or None
        None: the kind's own.
    cache_bytes : list of int or None
        Budgets; None: the recorded one, or a grid for curves.
    horizon, named : list of int or None
    seed : int
    jobs : int or None
    """

    policies: Sequence[str | Policy] | None = None
    predictors: Sequence[str] | None = None
    cache_bytes: Sequence[int] | None = None
    horizon: Sequence[int] | None = None
    named: Sequence[int] | None = None
    seed: int = 0
    jobs: int | None = None

    def given(self, **names: str) -> dict[str, Any]:
        """Return the choices that were made, as keyword arguments ``argument=choice``."""
        values = {argument: getattr(self, choice) for argument, choice in names.items()}
        return {argument: value for argument, value in values.items() if value is not None}

    def one_budget(self) -> int | None:
        """Return the only budget, for a plot that shows one.

        Raises
        ------
        UsageError
            Several were given.
        """
        return _only("cache budget", self.cache_bytes)

    def one_policy(self, default: str) -> str | Policy:
        """Return the only policy, for a plot that shows one.

        Raises
        ------
        UsageError
            Several were given.
        """
        return _only("policy", self.policies) or default


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
    compute : callable
        (trace, choices) → the DataFrame behind the plot.
    draw : callable
        (DataFrame, ax=…) → Axes.
    """

    name: str
    summary: str
    compute: Callable[[Trace, Choices], pd.DataFrame]
    draw: Callable[..., Axes]


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "predictability",
            "slot accuracy of each predictor, layer by layer",
            lambda trace, c: analysis.accuracy_by_layer(
                trace, **c.given(predictors="predictors", jobs="jobs"), seed=c.seed
            ),
            plots.plot_predictability,
        ),
        Kind(
            "horizon",
            "slot accuracy by how many layers ahead is predicted",
            lambda trace, c: analysis.accuracy_by_horizon(
                trace,
                **c.given(predictors="predictors", horizon="horizon", jobs="jobs"),
                seed=c.seed,
            ),
            plots.plot_horizon,
        ),
        Kind(
            "recall",
            "selected experts that are named, by how many are named",
            lambda trace, c: analysis.recall_by_named(
                trace, **c.given(predictors="predictors", named="named", jobs="jobs"), seed=c.seed
            ),
            plots.plot_recall,
        ),
        Kind(
            "curves",
            "hit rate by cache budget, under the bound",
            lambda trace, c: analysis.hit_rate_curves(
                trace,
                **c.given(policies="policies", cache_bytes="cache_bytes", jobs="jobs"),
                seed=c.seed,
            ),
            plots.plot_curves,
        ),
        Kind(
            "gains",
            "points of hit rate that a policy gains over LRU, by cache budget",
            lambda trace, c: analysis.hit_rate_gains(
                trace, **c.given(policies="policies"), seed=c.seed
            ),
            plots.plot_gains,
        ),
        Kind(
            "read-bytes",
            "bytes that each decoded token reads, as it ran",
            lambda trace, c: analysis.read_bytes_by_token(
                trace, c.policies, cache_bytes=c.one_budget()
            ),
            plots.plot_read_bytes,
        ),
        Kind(
            "popularity",
            "how often each expert is selected, layer × expert",
            lambda trace, c: analysis.expert_popularity(trace),
            plots.plot_popularity,
        ),
        Kind(
            "popularity-sorted",
            "the same, each layer's favourites first",
            lambda trace, c: analysis.expert_popularity(trace),
            lambda data, **style: plots.plot_popularity(data, by="rank", **style),
        ),
        Kind(
            "reuse",
            "reuse distance in bytes, with the budget drawn in",
            lambda trace, c: analysis.reuse_distance(trace, cache_bytes=c.one_budget()),
            plots.plot_reuse,
        ),
        Kind(
            "reuse-tokens",
            "reuse distance in tokens",
            lambda trace, c: analysis.reuse_distance(trace, unit="tokens"),
            plots.plot_reuse,
        ),
        Kind(
            "working-set",
            "distinct experts touched, since the start and by any n tokens",
            lambda trace, c: analysis.working_set(trace),
            plots.plot_working_set,
        ),
        Kind(
            "overlap",
            "experts that routings share, by lag in tokens and in layers",
            lambda trace, c: analysis.overlap_by_lag(trace),
            plots.plot_overlap,
        ),
        Kind(
            "concentration",
            "routing entropy and top-1 share, layer by layer",
            lambda trace, c: analysis.routing_concentration(trace),
            plots.plot_concentration,
        ),
        Kind(
            "timeline",
            "token × layer: hit, miss or prefetched under one policy (or as recorded)",
            lambda trace, c: analysis.residency_timeline(
                trace, c.one_policy("lru"), cache_bytes=c.one_budget()
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
