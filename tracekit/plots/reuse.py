"""Reuse distance: how much else is touched before an expert is needed again."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from tracekit.analysis.budget import DEFAULT_FRACTION
from tracekit.analysis.reuse import reuse_distance
from tracekit.figures import MIB, in_mib
from tracekit.plots.kinds import register
from tracekit.plots.style import (
    BLUE,
    VERMILION,
    axes_or_new,
    finish,
    grouped_numbers,
    mark_token_cycle,
    percent_axis,
)

_BUDGETS = {
    "given": "cache budget ({})",
    "recorded": "recorded cache budget ({})",
    "default": f"{100 * DEFAULT_FRACTION:g} % of all experts, as an example ({{}})",
}


@register(
    "reuse-tokens",
    "reuse distance in tokens",
    lambda trace, choices: reuse_distance(trace, unit="tokens"),
)
@register(
    "reuse",
    "reuse distance in bytes, with the budget drawn in",
    lambda trace, choices: reuse_distance(trace, cache_bytes=choices.one_budget()),
    reads=("cache_bytes",),
    at_one_budget=True,
)
def plot_reuse(data: pd.DataFrame, *, ax: Axes | None = None, **style: Any) -> Axes:
    """Draw the distribution of reuse distances.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.reuse_distance`, in bytes or in tokens.
    ax : Axes, optional
        Where to draw; a new figure by default.
    **style
        Passed to ``Axes.bar``.

    Returns
    -------
    Axes
        Bars over a logarithmic axis; of distances in bytes also the token cycle and the budget,
        left of which LRU hits. First uses have no distance; their share stands in the title.
    """
    ax = axes_or_new(ax)
    in_bytes = data["unit"].iloc[0] == "bytes"
    scale = MIB if in_bytes else 1
    reused = data[np.isfinite(data["high"])]
    # A whole number of tokens stands in the middle of its bar.
    shift = 0 if in_bytes else 0.5
    low, high = reused["low"] / scale + shift, reused["high"] / scale + shift
    ax.bar(
        low,
        reused["share"],
        width=high - low,
        align="edge",
        **{"color": BLUE, "edgecolor": "white", "linewidth": 0.3, **style},
    )
    if in_bytes:
        mark_token_cycle(ax.axvline, data["token_cycle_bytes"].iloc[0])
        budget = data["budget_bytes"].iloc[0]
        ax.axvline(
            budget / MIB,
            color=VERMILION,
            linestyle="--",
            label=_BUDGETS[data["budget_source"].iloc[0]].format(in_mib(budget)),
        )
    first = data["share"][~np.isfinite(data["high"])].sum()
    used = reused["lookups"] > 0
    if used.any():
        ax.set_xlim(low[used].iloc[0] / 1.5, high.iloc[-1] * 1.1)
    ax.set_xscale("log")
    left, right = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if right < 50 * left else (1,)))
    grouped_numbers(ax)
    ax.xaxis.set_minor_formatter(NullFormatter())
    percent_axis(ax, top=max(1.05 * reused["share"].max(), 0.01))
    prefill = "prefill counted" if in_bytes else "prefill not counted"
    return finish(
        ax,
        title=f"Reuse distance (first uses, {prefill}: {100 * first:.1f} % of decode lookups)",
        xlabel=f"{'distinct MiB touched' if in_bytes else 'tokens'} since the expert's last use",
        ylabel="share of decode lookups",
    )
