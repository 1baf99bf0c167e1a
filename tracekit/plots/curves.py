"""Hit-rate curves: policies over cache budgets, under the bound."""

from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.curves import POLICIES, curves_replayed, hit_rate_curves
from tracekit.figures import MIB
from tracekit.plots.kinds import register
from tracekit.plots.series import Look, policy_series, sparse_marker, thin_markers
from tracekit.plots.style import BLACK, axes_or_new, budget_axis, finish, percent_axis
from tracekit.replaying import ReplayResult

_HOLLOW: Look = {"linestyle": "none", "marker": "o", "markersize": 6, "markerfacecolor": "white"}


@register(
    "curves",
    "hit rate by cache budget, under the bound",
    lambda trace, choices: hit_rate_curves(
        trace,
        choices.policies_or(POLICIES),
        choices.cache_bytes,
        bypass=choices.bypass,
        seed=choices.seed,
        jobs=choices.jobs,
    ),
    reads=("policies", "params", "cache_bytes", "bypass"),
)
def plot_curves(
    data: pd.DataFrame, *, ax: Axes | None = None, phase: str = "decode", **style: Any
) -> Axes:
    """Draw each policy's hit rate against the cache budget.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.hit_rate_curves`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    phase : {"decode", "cumulative"}
        Which hit rate: of decode lookups only, or of all.
    **style
        Passed to ``Axes.plot`` for every policy.

    Returns
    -------
    Axes
        One line a policy, hollow where it ran over its budget; the region under one token cycle,
        where LRU falls off its cliff, is grey; the compulsory-miss ceiling is dotted. At a single
        budget the legend says the hit rates.
    """
    ax = axes_or_new(ax, (7.6, 4.8))
    rate = f"hit_rate_{phase}"
    for name, policy_look, rows in policy_series(data.sort_values("cache_bytes", kind="stable")):
        look = sparse_marker(thin_markers(policy_look, len(rows)), rows) | style
        x, y = rows["cache_bytes"] / MIB, rows[rate]
        label = f"{name}: {100 * y.iloc[0]:.1f} %" if len(rows) == 1 and y.notna().all() else name
        ax.plot(x, y, **{**look, "label": label})
        over = _over_budget(rows)
        ax.plot(x[over], y[over], **{**_HOLLOW, "color": look["color"]})
    if _over_budget(data).any():
        ax.plot([], [], **{**_HOLLOW, "color": BLACK, "label": "over its budget"})
    ceiling = data[f"ceiling_{phase}"].iloc[0]
    ax.axhline(
        ceiling,
        color=BLACK,
        linestyle=":",
        linewidth=1,
        label=f"all but first uses ({100 * ceiling:.1f} %)",
    )
    ax.set_ylim(-0.015, 1.02)
    percent_axis(ax)
    budget_axis(ax, data["cache_bytes"], data["token_cycle_bytes"].iloc[0])
    return finish(
        ax,
        title="Hit rate by cache budget (grey: under one token cycle)",
        xlabel="cache budget (MiB)",
        ylabel=f"hit rate, {phase}",
    )


def plot_replay(result: ReplayResult, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw `plot_curves` of a replay: what ``result.plot()`` calls."""
    return plot_curves(curves_replayed(result), ax=ax, **style)


def _over_budget(data: pd.DataFrame) -> pd.Series:
    """Tell which rows ran over their budget; a bound has no run, and so did not."""
    return data["over_budget_decode"].astype("boolean").fillna(False).astype(bool)
