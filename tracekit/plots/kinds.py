"""What a kind of plot is, and the registry of kinds that ``tracekit plot`` draws from.

A kind stands where its function stands: the file of a plot decorates the function that draws with
`register`, and says there from which data it draws. This file knows no kind by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.budget import DEFAULT_FRACTION, default_budget
from tracekit.analysis.runs import RECORDED
from tracekit.figures import in_mib
from tracekit.formats import ExpertCounts, as_trace, as_trace_or_counts
from tracekit.policies import Policy, load_policies
from tracekit.registry import unknown
from tracekit.trace import Trace, UsageError

Draw = TypeVar("Draw", bound=Callable[..., Axes])


@dataclass(frozen=True)
class Choices:
    """What a user may choose of a plot; every kind reads the choices that concern it.

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
        Budgets; None: the recorded one, or a range where a plot has budgets on its axis.
    horizon, named : list of int or None
    bypass : bool
        The engine may drop at once what it has just used.
    seed : int
    jobs : int or None
    """

    policies: Sequence[str | Policy] | None = None
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    predictors: Sequence[str] | None = None
    cache_bytes: Sequence[int] | None = None
    horizon: Sequence[int] | None = None
    named: Sequence[int] | None = None
    bypass: bool = False
    seed: int = 0
    jobs: int | None = None

    def one_budget(self) -> int | None:
        """Return the only budget, for a plot that shows one; None if no budget was chosen.

        Raises
        ------
        UsageError
            Several budgets were chosen.
        """
        if self.cache_bytes is None:
            return None
        if len(self.cache_bytes) != 1:
            raise UsageError(f"This plot shows one cache budget, not {len(self.cache_bytes)}.")
        return self.cache_bytes[0]

    def policies_or(self, default: Sequence[str]) -> list[str | Policy]:
        """Return the chosen policies, or `default`, once for each combination of parameters.

        Raises
        ------
        UsageError
            An unknown policy, or a parameter of a policy that the plot does not show.
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

    def one_policy_or(self, default: str) -> str | Policy:
        """Return the chosen policy, or `default`, for a plot that shows one.

        Raises
        ------
        UsageError
            Several policies were chosen, or as for `policies_or`.
        """
        policies = self.policies_or([default])
        if len(policies) != 1:
            raise UsageError(f"This plot shows one policy, not {len(policies)}.")
        return policies[0]


@dataclass(frozen=True)
class Kind:
    """A kind of plot.

    Attributes
    ----------
    name, summary : str
    data : callable
        (trace, choices) → the DataFrame that the plot draws; of a trace or of counts if it takes them.
    draw : callable
        (DataFrame, ax=…) → Axes.
    reads : tuple of str
        The names of the `Choices` that concern it, besides seed and jobs.
    at_one_budget : bool
        It shows one cache budget, which somebody has to choose.
    takes_counts : bool
        It needs no order: counts will do.
    """

    name: str
    summary: str
    data: Callable[[Any, Choices], pd.DataFrame]
    draw: Callable[..., Axes]
    reads: tuple[str, ...] = ()
    at_one_budget: bool = False
    takes_counts: bool = False

    def compute(self, trace: Trace | ExpertCounts | str | Path, choices: Choices) -> pd.DataFrame:
        """Return what the plot draws; ``attrs["notes"]`` says what a reader has to know of it."""
        if self.takes_counts:
            return self.data(as_trace_or_counts(trace), choices)
        opened = as_trace(trace)
        frame = self.data(opened, choices)
        note = _example_budget(opened, choices) if self.at_one_budget else None
        if note is not None:
            frame.attrs["notes"] = [note]
        return frame


def _example_budget(trace: Trace, choices: Choices) -> str | None:
    """Say which budget is shown where neither the user nor the trace names one."""
    replayed = choices.policies is None or list(choices.policies) != [RECORDED]
    if not replayed or choices.cache_bytes is not None or trace.budget_bytes is not None:
        return None
    return (
        f"The trace carries no cache budget: {100 * DEFAULT_FRACTION:g} % of the expert bank, "
        f"{in_mib(default_budget(trace))}, is drawn as an example; --cache-mib sets another."
    )


KINDS: dict[str, Kind] = {}


def register(
    name: str,
    summary: str,
    data: Callable[[Any, Choices], pd.DataFrame],
    *,
    reads: tuple[str, ...] = (),
    at_one_budget: bool = False,
    takes_counts: bool = False,
) -> Callable[[Draw], Draw]:
    """Return a decorator that registers a function as the one that draws a kind; see `Kind`.

    Kinds are listed in the order in which they are registered; of two decorators of one function,
    the lower comes first.
    """

    def decorate(draw: Draw) -> Draw:
        if name in KINDS:
            raise ValueError(f"the kind of plot {name!r} is registered twice")
        KINDS[name] = Kind(name, summary, data, draw, reads, at_one_budget, takes_counts)
        return draw

    return decorate


def find_kind(name: str) -> Kind:
    """Return the kind called `name`.

    Raises
    ------
    UsageError
        No kind has this name; the sentence names the nearest match.
    """
    if name not in KINDS:
        raise unknown("plot", name, KINDS)
    return KINDS[name]
