"""Bytes read per token over time."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tracekit.figures import MIB, in_mib
from tracekit.plots.style import (
    GREY,
    PALE,
    axes_or_new,
    finish,
    grouped_numbers,
    legend_below,
    marked_if_few,
    policy_series,
    whole_numbers,
)


def plot_read_bytes(
    data: pd.DataFrame, *, ax: Axes | None = None, window: int | None = None, **style: Any
) -> Axes:
    """Draw the bytes that each decoded token reads, as it ran.

    Parameters
    ----------
    data : DataFrame
        From `tracekit.analysis.read_bytes_by_token`.
    ax : Axes, optional
        Where to draw; a new figure by default.
    window : int, optional
        Tokens of the moving mean; a fortieth of the trace by default. The single tokens stand
        pale behind it where there is one policy only.
    **style
        Passed to ``Axes.plot`` for the means.

    Returns
    -------
    Axes
        One line a policy, the token cycle (what a token reads without a cache), and a thin
        vertical line where a turn begins.
    """
    ax = axes_or_new(ax)
    runs = [
        (name, look, budget, rows)
        for name, look, of_policy in policy_series(data)
        for budget, rows in of_policy.groupby("cache_bytes", sort=False, dropna=False)
    ]
    if window is None:
        window = max(1, data["token"].nunique() // 40)
    for name, look, budget, rows in runs:
        mib = rows["read_bytes"] / MIB
        drawn = {**marked_if_few(look, len(rows)), **style}
        if len(runs) == 1 and window > 1:
            ax.plot(rows["token"], mib, color=drawn["color"], alpha=0.25, linewidth=0.7)
        mean = mib.rolling(window, min_periods=1, center=True).mean()
        label = name if np.isnan(budget) else f"{name} at {in_mib(budget)}"
        ax.plot(rows["token"], mean, label=label, **drawn)
    cycle = data["token_cycle_bytes"].iloc[0]
    ax.axhline(cycle / MIB, color=GREY, linestyle=":", label=f"one token cycle ({in_mib(cycle)})")
    by_token = data.drop_duplicates("token")
    starts = by_token["token"].to_numpy()[1:][np.diff(by_token["turn"].to_numpy()) != 0]
    for start in starts:
        ax.axvline(start, color=PALE, linewidth=0.8, zorder=0)
    ax.set_ylim(bottom=0)
    ax.margins(x=0.01)
    whole_numbers(ax)
    grouped_numbers(ax, "y")
    mean_of = f"mean of {window} tokens" if window > 1 else "each token"
    finish(
        ax,
        title=f"Bytes read per decoded token ({mean_of})",
        xlabel="decoded token",
        ylabel="read (MiB per token)",
    )
    legend_below(ax)
    return ax
