"""What each token reads: bytes per decoded token, as the run went on."""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from tracekit.analysis.runs import read_by_default, read_bytes_by_token
from tracekit.figures import MIB, in_mib
from tracekit.plots.kinds import register
from tracekit.plots.series import marked_if_few, policy_series
from tracekit.plots.style import (
    GREY,
    axes_or_new,
    finish,
    grouped_numbers,
    mark_token_cycle,
    turn_starts,
    whole_numbers,
)

DECODED = {"token": "decoded token", "pass": "decode pass"}


@register(
    "read-bytes",
    "bytes that each decoded token reads, as it ran",
    lambda trace, choices: read_bytes_by_token(
        trace, choices.policies_or(read_by_default(trace)), choices.one_budget(), choices.bypass
    ),
    reads=("policies", "params", "cache_bytes", "bypass"),
    at_one_budget=True,
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
        vertical line where a turn begins. Where passes verify several drafted tokens, the bytes are
        those of a pass, and the legend gives those of a token that stayed.
    """
    ax = axes_or_new(ax)
    unit = "token" if (data["kept_tokens"] == 1).all() else "pass"
    runs = [
        (name, look, budget, rows)
        for name, look, of_policy in policy_series(data)
        for budget, rows in of_policy.groupby("cache_bytes", sort=False, dropna=False)
    ]
    if window is None:
        window = max(1, data["token"].nunique() // 40)
    for name, policy_look, budget, rows in runs:
        mib = rows["read_bytes"] / MIB
        look = {**marked_if_few(policy_look, len(rows)), **style}
        if len(runs) == 1 and window > 1:
            ax.plot(rows["token"], mib, color=look["color"], alpha=0.25, linewidth=0.7)
        mean = mib.rolling(window, min_periods=1, center=True).mean()
        label = name if np.isnan(budget) else f"{name} at {in_mib(budget)}"
        if unit == "pass":
            of_token = rows["read_bytes"].sum() / rows["kept_tokens"].sum()
            label += f": {in_mib(of_token)} per kept token"
        ax.plot(rows["token"], mean, **{**look, "label": label})
    mark_token_cycle(ax.axhline, data["token_cycle_bytes"].iloc[0])
    for place, start in enumerate(turn_starts(data)):
        label = "" if place else "a turn begins"  # one entry in the legend is enough
        ax.axvline(start, color=GREY, alpha=0.5, linewidth=0.7, zorder=0, label=label)
    ax.set_ylim(bottom=0)
    ax.margins(x=0.01)
    whole_numbers(ax)
    grouped_numbers(ax, "y")
    units = {"token": "tokens", "pass": "passes"}[unit]
    mean_of = f"mean of {window} {units}" if window > 1 else f"each {unit}"
    return finish(
        ax,
        title=f"Bytes read per {DECODED[unit]} ({mean_of})",
        xlabel=DECODED[unit],
        ylabel=f"read (MiB per {unit})",
    )
